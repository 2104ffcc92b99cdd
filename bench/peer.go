package main

import (
	"context"
	"database/sql"
	"time"

	"github.com/halfbox/halfbox/internal/database"
)

// peer is one implementation of an outbox: it writes an event beside an order, and relays it.
type peer interface {
	// setup makes the peer's tables.
	setup(ctx context.Context) error
	// publish inserts the order and the event in one transaction.
	publish(ctx context.Context, o order) error
	// relay starts relaying to out and returns what stops it and waits.
	relay(out *output) (stop func(context.Context) error, err error)
}

// site is what a peer has to work with.
type site struct {
	// db is connected as halfbox connects, plain as the driver does by default: watermill-sql's JSON columns refuse
	// what interpolated parameters make of them.
	db    *database.DB
	plain *sql.DB
	topic string
	batch int
	// patience is how long a peer holds what it has claimed or read: halfbox's lease, watermill's AckDeadline.
	patience time.Duration
}

// contender is a peer by name.
type contender struct {
	name string
	make func(site) (peer, error)
}

// contenders lists the peers in the order of the table; the first is what the others' ratios refer to.
func contenders() []contender {
	return []contender{
		{"bare", newBare},
		{"halfbox", newHalfbox},
		{"watermill-default", newWatermillDefault},
		{"watermill-queue", newWatermillQueue},
	}
}

func peerNames() (names []string) {
	for _, c := range contenders() {
		names = append(names, c.name)
	}
	return names
}
