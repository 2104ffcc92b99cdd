package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/localtx"
	"github.com/halfbox/halfbox/outbox"
)

// printer is a sink: where events go.
type printer struct{ sent chan struct{} }

func (printer) Name() string { return "main" }

func (p printer) Send(_ context.Context, batch []outbox.Record) error {
	for _, r := range batch {
		_, ev, err := halfbox.Decode(r.Payload)
		if err != nil {
			return outbox.Refused(err) // a dead letter at once
		}
		fmt.Fprintln(os.Stdout, "sent to", r.Destination+":", ev.Type, ev.Subject, string(ev.Data))
		p.sent <- struct{}{}
	}
	return nil
}

func paid(no string) halfbox.Event {
	return halfbox.Event{
		Type: "invoice.paid", Source: "/billing", Subject: no, Time: time.Now(), DataSchema: "urn:example:invoice:1",
		AggregateVersion: 1, PartitionKey: no, Data: json.RawMessage(`{"invoice":"` + no + `"}`),
	}
}

// An event is sent exactly if the transaction that wrote it commits: with gorm, and inside a *sql.Tx of your own.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "outbox")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	db, err := localtx.OpenSQLite(filepath.Join(dir, "billing.db"), localtx.Options{})
	check(err)
	defer func() { check(db.Close()) }()
	check(db.Migrate(ctx, outbox.Migrations()))
	check(db.Write.Exec("CREATE TABLE invoice (no TEXT PRIMARY KEY)").Error)

	sink := printer{sent: make(chan struct{}, 10)}
	relay, err := outbox.NewRelay(outbox.RelayConfig{DB: db, Sinks: []outbox.Sink{sink}})
	check(err)
	writer, err := outbox.NewWriter(outbox.WriterConfig{DB: db, Sink: "main", Destination: "INVOICES", Nudge: relay.Nudge})
	check(err)
	check(relay.Start())

	// The writer begins and commits.
	_, err = writer.PublishInTx(ctx, paid("A1"), func(tx *gorm.DB, _ halfbox.Attempt) error {
		return tx.Exec("INSERT INTO invoice (no) VALUES (?)", "A1").Error
	})
	check(err)
	<-sink.sent

	// The same with database/sql.
	_, err = writer.PublishInTx(ctx, paid("A2"), localtx.SQL(func(ctx context.Context, tx *sql.Tx, _ halfbox.Attempt) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoice (no) VALUES (?)", "A2")
		return err
	}))
	check(err)
	<-sink.sent

	// You begin and commit.
	tx, err := db.SQL().BeginTx(ctx, nil)
	check(err)
	_, err = tx.ExecContext(ctx, "INSERT INTO invoice (no) VALUES (?)", "A3")
	check(err)
	at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
	check(err)
	check(writer.WriteSQLTx(ctx, tx, paid("A3"), at))
	check(tx.Commit())
	relay.Nudge()
	<-sink.sent

	check(relay.Stop(ctx))
	// Output:
	// sent to INVOICES: invoice.paid A1 {"invoice":"A1"}
	// sent to INVOICES: invoice.paid A2 {"invoice":"A2"}
	// sent to INVOICES: invoice.paid A3 {"invoice":"A3"}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
