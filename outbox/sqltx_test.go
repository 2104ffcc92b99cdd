package outbox

import (
	"database/sql"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
)

// TestWriteSQLTxIsTheCallersTransaction: the record comes and goes with it.
func TestWriteSQLTxIsTheCallersTransaction(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		w := newTestWriter(t, db)
		writeIn := func(subject string, end func(*sql.Tx) error) string {
			tx, err := db.SQL().BeginTx(t.Context(), nil)
			require.NoError(t, err)
			at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), "INSERT INTO t_local (msg_id, delivery) VALUES (?, ?)", at.MsgID, string(at.Delivery))
			require.NoError(t, err)
			require.NoError(t, w.WriteSQLTx(t.Context(), tx, event(subject), at))
			require.NoError(t, end(tx))
			return at.MsgID
		}
		gone, kept := writeIn("A1", (*sql.Tx).Rollback), writeIn("A2", (*sql.Tx).Commit)
		_, err := Get(t.Context(), db, gone)
		require.ErrorIs(t, err, ErrNotFound)
		got, err := Get(t.Context(), db, kept)
		require.NoError(t, err)
		require.Equal(t, "A2", got[0].BizNo)
		require.WithinDuration(t, time.Now(), got[0].CreatedAt, time.Minute)
		require.WithinDuration(t, time.Now(), got[0].NextRetryTime, time.Minute)
		var local []string
		require.NoError(t, db.Read.Raw("SELECT msg_id FROM t_local").Scan(&local).Error)
		require.Equal(t, []string{kept}, local)

		tx, err := db.SQL().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
		require.NoError(t, err)
		require.ErrorIs(t, w.WriteSQLTx(t.Context(), tx, event("A2"), at), ErrDuplicateFact)
		require.NoError(t, w.WriteSQLTx(t.Context(), tx, event("A3"), at), "the transaction is still usable")
		require.NoError(t, tx.Commit())
		require.Equal(t, 2, countStatus(t, db, StatusWait))
	})
}

// TestWriteSQLTxOfAPoolInAnotherZone: facts are UTC whatever zone the caller's own pool has.
func TestWriteSQLTxOfAPoolInAnotherZone(t *testing.T) {
	t.Parallel()
	dsn := enginetest.MySQL(t)
	db, err := database.OpenMySQL(dsn, database.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.Migrate(t.Context(), Migrations()))
	cfg, err := database.CompleteDSN(dsn, time.Second)
	require.NoError(t, err)
	cfg.Loc = time.FixedZone("far", 8*3600)
	cfg.Params["time_zone"] = "'+08:00'"
	connector, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	own := sql.OpenDB(connector)
	defer func() { require.NoError(t, own.Close()) }()
	w := newTestWriter(t, db)
	tx, err := own.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
	require.NoError(t, err)
	require.NoError(t, w.WriteSQLTx(t.Context(), tx, event("A1"), at))
	require.NoError(t, tx.Commit())
	got, err := Get(t.Context(), db, at.MsgID)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), got[0].CreatedAt, time.Minute)
	require.WithinDuration(t, time.Now(), got[0].NextRetryTime, time.Minute)
}

// TestPayloadOverTheSinksLimit is refused inside the caller's transaction, which may go on or roll back; one byte less
// is taken. Each writer has the limit of its sink.
func TestPayloadOverTheSinksLimit(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
		require.NoError(t, err)
		ev := event("A1")
		ev.Data, err = json.Marshal(string(make([]byte, 2000)))
		require.NoError(t, err)
		body, err := halfbox.Encode(ev, at.MsgID)
		require.NoError(t, err)
		small := newTestWriter(t, db, func(c *WriterConfig) { c.MaxPayload = len(body) - 1 })
		large := newTestWriter(t, db, func(c *WriterConfig) { c.MaxPayload, c.Sink = len(body), "large" })
		rollback := errors.New("no")
		for _, give := range []error{rollback, nil} {
			err = db.InTx(t.Context(), func(tx *gorm.DB) error {
				require.NoError(t, insertLocal(tx, at))
				require.ErrorIs(t, small.WriteTx(tx, ev, at), ErrTooLarge)
				require.NoError(t, large.WriteTx(tx, ev, at))
				return give
			})
			require.ErrorIs(t, err, give)
		}
		all := entries(t, db)
		require.Len(t, all, 1)
		require.Equal(t, "large", all[0].Sink)
	})
}
