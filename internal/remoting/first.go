package remoting

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// askNext is how long a name server may say nothing before the next one is asked too.
const askNext = 100 * time.Millisecond

// FirstAnswer asks name servers (host:port, also behind "http://") until one has an answer that is not empty: one
// after the other, and the next one already while one says nothing, as a machine without power does, so that it does
// not use up the time that ctx leaves. Empty without an error means that one has answered so.
func FirstAnswer[T any](ctx context.Context, nameServers []string, ask func(ctx context.Context, server string) ([]T, error)) ([]T, error) {
	type answer struct {
		found []T
		err   error
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, len(nameServers))
	asked := 0
	next := func() {
		server := strings.TrimPrefix(nameServers[asked], "http://")
		asked++
		asking.Go(func() {
			found, err := ask(ctx, server)
			if err != nil {
				err = fmt.Errorf("name server %s: %w", server, err)
			}
			answers <- answer{found, err}
		})
	}
	empty := false
	var errs []error
	for got := 0; got < len(nameServers); {
		if asked == got {
			next()
		}
		var silent <-chan time.Time
		if asked < len(nameServers) {
			silent = time.After(askNext)
		}
		select {
		case a := <-answers:
			got++
			if len(a.found) > 0 {
				return a.found, nil
			}
			empty = empty || a.err == nil
			errs = append(errs, a.err)
		case <-silent:
			next()
		}
	}
	if empty {
		return nil, nil
	}
	return nil, errors.Join(errs...)
}
