package rocketmq

import (
	"context"
	"fmt"
	"strconv"

	"github.com/halfbox/halfbox/internal/remoting"
)

// Lag returns how many messages of a topic a consumer group has not acknowledged yet, over all queues. A group that
// has acknowledged nothing of a queue is behind by all that the queue holds; of a topic that is not there, by nothing.
func Lag(ctx context.Context, nameServers []string, creds Credentials, group, topic string) (behind int64, err error) {
	d := newDirectory(nameServers, topic, creds)
	queues, err := remoting.FirstAnswer(ctx, nameServers, func(ctx context.Context, ns string) ([]remoting.Queue, error) {
		return remoting.Queues(ctx, ns, topic, d.creds)
	})
	if err != nil {
		return 0, err
	}
	conns := map[string]*remoting.Conn{}
	defer func() {
		for _, conn := range conns {
			_ = conn.Close() // nothing is lost with it
		}
	}()
	for _, q := range queues {
		conn := conns[q.Addr]
		if conn == nil {
			if conn, err = remoting.Dial(ctx, q.Addr, d.creds); err != nil {
				return 0, err
			}
			conns[q.Addr] = conn
		}
		n, err := queueLag(ctx, conn, group, topic, q.ID)
		if err != nil {
			return 0, fmt.Errorf("queue %d of %s at %s: %w", q.ID, topic, q.Addr, err)
		}
		behind += n
	}
	return behind, nil
}

func queueLag(ctx context.Context, conn *remoting.Conn, group, topic string, queue int) (int64, error) {
	of := map[string]string{"topic": topic, "queueId": strconv.Itoa(queue)}
	end, _, err := askOffset(ctx, conn, remoting.CodeMaxOffset, of)
	if err != nil {
		return 0, err
	}
	done, found, err := askOffset(ctx, conn, remoting.CodeConsumerOffset, map[string]string{
		"topic": topic, "queueId": of["queueId"], "consumerGroup": group,
	})
	if err == nil && !found {
		done, _, err = askOffset(ctx, conn, remoting.CodeMinOffset, of)
	}
	return max(0, end-done), err
}

// askOffset asks for an offset; found is false when the broker has none.
func askOffset(ctx context.Context, conn *remoting.Conn, code int, ext map[string]string) (offset int64, found bool, err error) {
	a, err := conn.Ask(ctx, code, ext)
	switch {
	case err != nil:
		return 0, false, err
	case a.Code == remoting.CodeNotFound:
		return 0, false, nil
	case a.Code != remoting.CodeOK:
		return 0, false, fmt.Errorf("request %d is answered with code %d: %s", code, a.Code, a.Remark)
	}
	offset, err = strconv.ParseInt(a.Ext["offset"], 10, 64)
	return offset, err == nil, err
}
