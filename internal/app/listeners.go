package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/halfbox/halfbox/internal/httpapi"
)

// How long the listeners wait for requests in flight when they stop.
const (
	httpDrain  = 4 * time.Second
	adminDrain = time.Second
)

// openListeners builds the operator's listener.
func (a *App) openListeners() error {
	if err := httpapi.CheckOperatorAddress(a.cfg.Admin.Listen, string(a.cfg.Admin.Token)); err != nil {
		return err
	}
	cfg := httpapi.OperatorConfig{Gatherer: a.reg, Checks: a.checks, Token: string(a.cfg.Admin.Token), Logger: a.log}
	if a.orderDB != nil {
		cfg.Mount = append(cfg.Mount, httpapi.EventRoutes(events{a.orderDB, a.cfg.Outbox.Sink}, a.log.Named("operator")))
	}
	operator, err := httpapi.Operator(cfg)
	if err != nil {
		return err
	}
	return a.listen("admin", a.cfg.Admin.Listen, operator, adminDrain, &a.addrs.Admin)
}

// listen binds an address now and serves it from Start on.
func (a *App) listen(name, addr string, handler http.Handler, drain time.Duration, bound *string) error {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return &SetupError{fmt.Errorf("%s address %s is in use", name, addr), "stop what listens there, or choose another with --" + name}
	}
	if err != nil {
		return &SetupError{fmt.Errorf("%s address %s: %w", name, addr, err), "choose another with --" + name}
	}
	*bound = ln.Addr().String()
	server := httpapi.NewServer(handler)
	served := make(chan struct{})
	started := false
	a.onStart(name+" listener", func() error {
		started = true
		go func() {
			defer close(served)
			if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
				a.failed <- fmt.Errorf("%s listener: %w", name, err)
			}
		}()
		return nil
	})
	a.onStop(name+" listener", func(ctx context.Context) error {
		if !started {
			return ln.Close()
		}
		// A client that never ends its request must not use up what the other parts need to finish.
		ctx, cancel := context.WithTimeout(ctx, drain)
		defer cancel()
		err := server.Shutdown(ctx)
		if err != nil { // requests in flight outlasted ctx
			err = errors.Join(err, server.Close())
		}
		<-served
		return err
	})
	return nil
}
