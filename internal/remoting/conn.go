package remoting

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Conn is a connection that takes one question after the other. It is not safe for concurrent use.
type Conn struct {
	addr  string
	creds Credentials
	conn  net.Conn
	asked int32 // the number of questions, which is what numbers them
}

// Dial connects to a server (host:port). ctx bounds it, and so do 5 s. The caller closes the connection.
func Dial(ctx context.Context, addr string, creds Credentials) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Conn{addr: addr, creds: creds, conn: conn}, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Ask sends one request without a body and returns its answer. An answer with an error code is an answer, not an
// error; after an error the connection is of no more use. ctx bounds it; without a deadline 5 s do.
func (c *Conn) Ask(ctx context.Context, code int, ext map[string]string) (Answer, error) {
	return c.AskWithBody(ctx, code, ext, nil)
}

// AskWithBody is Ask with a body.
func (c *Conn) AskWithBody(ctx context.Context, code int, ext map[string]string, body []byte) (Answer, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, askTimeout)
		defer cancel()
	}
	defer c.bound(ctx)()
	c.asked++
	request, err := encode(header{Code: code, Language: "GO", Version: protocolVersion, Opaque: c.asked, ExtFields: sign(ext, body, c.creds)}, body)
	if err != nil {
		return Answer{}, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", c.addr, err)
	}
	answer, err := read(c.conn)
	if err != nil {
		return Answer{}, fmt.Errorf("answer of %s: %w", c.addr, err)
	}
	return answer, nil
}

// Idle waits while nothing happens on the connection, for d or until ctx ends, and then returns nil. When the server
// closes the connection, or it breaks, Idle returns the reason at once.
func (c *Conn) Idle(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	defer c.bound(ctx)()
	_, err := c.conn.Read(make([]byte, 1))
	switch {
	case err == nil:
		return fmt.Errorf("%s sent something that nobody asked for", c.addr)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	}
	return fmt.Errorf("connection to %s: %w", c.addr, err)
}

// bound makes the end of ctx, by time or by cancel, end what waits on the connection. The caller calls what it returns
// when it no longer waits.
func (c *Conn) bound(ctx context.Context) (done func()) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = c.conn.SetDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-ended
		}
		_ = c.conn.SetDeadline(time.Time{})
	}
}
