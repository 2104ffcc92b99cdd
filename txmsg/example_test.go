package txmsg_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/localtx"
	"github.com/halfbox/halfbox/txmsg"
)

// Your own table. Each row carries the msg_id of the attempt that wrote it, under a unique key: so the row is the
// record of its transaction, and a VOID row can stop one that comes too late.
const table = `CREATE TABLE stock_move (
	msg_id TEXT NOT NULL PRIMARY KEY,
	state  TEXT NOT NULL, -- MOVED, or VOID for an attempt that will never commit
	shelf  TEXT NOT NULL,
	amount INTEGER NOT NULL
)`

// shelfResolver answers the broker's question whether a transaction committed, from that table alone.
type shelfResolver struct{ db *sql.DB }

func (r shelfResolver) Find(ctx context.Context, h checkback.Half) (checkback.Finding, error) {
	var state string
	err := r.db.QueryRowContext(ctx, "SELECT state FROM stock_move WHERE msg_id = ?", h.MsgID).Scan(&state)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return checkback.Absent, nil
	case err != nil:
		return checkback.Absent, err // never guess: the broker asks again
	case state == "VOID":
		return checkback.Void, nil
	}
	return checkback.Committed, nil
}

func (r shelfResolver) Bury(ctx context.Context, h checkback.Half) error {
	_, err := r.db.ExecContext(ctx, "INSERT INTO stock_move (msg_id, state, shelf, amount) VALUES (?, 'VOID', '', 0)", h.MsgID)
	if localtx.IsDuplicate(err) {
		return checkback.ErrTaken
	}
	return err
}

// take is the local transaction: whatever it writes in tx is committed together with the event, or not at all.
func take(shelf string, amount, inStock int) func(ctx context.Context, tx *sql.Tx, at halfbox.Attempt) error {
	return func(ctx context.Context, tx *sql.Tx, at halfbox.Attempt) error {
		if amount > inStock {
			return errors.New("no stock left")
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO stock_move (msg_id, state, shelf, amount) VALUES (?, 'MOVED', ?, ?)", at.MsgID, shelf, amount)
		if localtx.IsDuplicate(err) {
			return fmt.Errorf("%w: %w", halfbox.ErrVoided, err) // a check-back was faster; a new attempt follows
		}
		return err
	}
}

func must(err error) {
	if err != nil {
		log.Panic(err)
	}
}

// The whole of it: your own database/sql pool and table, and a broker. In a program of yours call
// txmsg.ConfigureClient(logger) first, name your cluster's name servers instead of starting a broker, and make the
// producer ready before you say that you are (Producer.Ready).
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "example-")
	must(err)
	defer func() { must(os.RemoveAll(dir)) }()

	// RocketMQ's protocol in this process.
	b, err := broker.Open(broker.Config{Dir: filepath.Join(dir, "broker"), Listen: "127.0.0.1:0"})
	must(err)
	must(b.Start())
	defer func() { must(b.Stop(ctx)) }()

	// Your pool. On MySQL: sql.Open("mysql", dsn) with the dsn that localtx.CompleteDSN makes.
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "stock.db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(2000)&_txlock=immediate")
	must(err)
	defer func() { must(pool.Close()) }()
	_, err = pool.ExecContext(ctx, table)
	must(err)
	db, err := localtx.FromSQL(ctx, pool, localtx.SQLite, localtx.Options{})
	must(err)

	// Check-backs have a pool of their own in production, so that they never queue behind your transactions.
	checker, err := checkback.New(checkback.Config{Resolvers: map[string]checkback.Resolver{"stock.taken": shelfResolver{pool}}})
	must(err)

	producer, err := txmsg.New(txmsg.Config{
		DB: db, NameServers: []string{b.Addr()}, Group: "stock-tx", Topic: "STOCK_TOPIC", Checker: checker,
		HalfTimeout: 10 * time.Second,
	})
	must(err)
	must(producer.Start())
	defer func() { must(producer.Stop(ctx)) }()

	for _, inStock := range []int{0, 10} {
		ev := halfbox.Event{
			Type: "stock.taken", Source: "/example/stock", Subject: "shelf-7", Time: time.Now(),
			DataSchema: "urn:example:schema:stock:1", AggregateVersion: 1, PartitionKey: "shelf-7",
			Data: json.RawMessage(`{"shelf":"shelf-7","amount":3}`),
		}
		receipt, err := producer.PublishInTx(ctx, ev, localtx.SQL(take("shelf-7", 3, inStock)))
		switch {
		case errors.Is(err, halfbox.ErrRolledBack):
			fmt.Println("nothing happened:", err)
			continue
		case errors.Is(err, halfbox.ErrUnknown):
			fmt.Println("ask the database by the business key:", err)
			continue
		}
		fmt.Println("committed by", receipt.Delivery)

		// What a consumer of the topic gets.
		for ctx.Err() == nil {
			found, err := b.FindMessages("STOCK_TOPIC", receipt.MsgID)
			must(err)
			if len(found) == 0 {
				continue // COMMIT is told to the broker in the background
			}
			_, got, err := halfbox.Decode(found[0].Body)
			must(err)
			fmt.Printf("delivered %s %s\n", got.Type, got.Data)
			break
		}
	}

	// Output:
	// nothing happened: halfbox: rolled back, nothing happened: no stock left
	// committed by txmsg
	// delivered stock.taken {"shelf":"shelf-7","amount":3}
}
