package cli_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/outbox"
)

// kill makes dead letters of the folder's records.
func kill(t *testing.T, dir string) *database.DB {
	t.Helper()
	db, err := database.OpenSQLite(filepath.Join(dir, "order.db"), database.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL', last_error = 'refused: no such topic'").Error)
	return db
}

func status(t *testing.T, db *database.DB, msgID string) outbox.Status {
	t.Helper()
	got, err := outbox.Get(context.Background(), db, msgID)
	require.NoError(t, err)
	return got[0].Status
}

func TestRedriveCommand(t *testing.T) {
	dir, ids := outboxFolder(t)
	db := kill(t, dir)

	code, out, _ := run("outbox", "redrive", "--error", "TOPIC", "--dry-run", "--data", dir)
	require.Zero(t, code)
	require.Contains(t, out, ids[0])
	require.Contains(t, out, "2 would be redriven")
	require.Equal(t, outbox.StatusFail, status(t, db, ids[0]))

	code, out, _ = run("outbox", "redrive", ids[0], "--sink", "main", "--reason", "topic was made", "--actor", "ann", "--data", dir)
	require.Zero(t, code)
	require.Regexp(t, `^1 of 1 dead letters redriven\nrun_id in t_audit_log: \S+\n$`, out)
	require.Equal(t, outbox.StatusWait, status(t, db, ids[0]))
	require.Equal(t, outbox.StatusFail, status(t, db, ids[1]))

	code, out, _ = run("outbox", "redrive", "--all", "--reason", "topic was made", "--limit", "1", "--data", dir, "-o", "json")
	require.Zero(t, code)
	var res map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &res))
	require.EqualValues(t, 1, res["changed"])
	require.Equal(t, outbox.StatusWait, status(t, db, ids[1]))
	audits, err := outbox.AuditsOf(t.Context(), db, ids[1])
	require.NoError(t, err)
	require.Len(t, audits, 1)
	require.Equal(t, res["run_id"], audits[0].RunID)
	require.Contains(t, audits[0].Actor, "@", "the user and host of the process")

	code, _, text := run("outbox", "redrive", ids[0], "--reason", "again", "--data", dir)
	require.Equal(t, 1, code)
	require.Contains(t, text, "it is WAIT for sink main")
	code, _, text = run("outbox", "redrive", "nobody", "--reason", "x", "--data", dir)
	require.Equal(t, 1, code)
	require.Contains(t, text, "no event record has msg_id nobody")
	code, out, _ = run("outbox", "redrive", "--all", "--reason", "none left", "--data", dir)
	require.Zero(t, code)
	require.Contains(t, out, "0 of 0 dead letters redriven")
}

func TestPurgeCommand(t *testing.T) {
	dir, ids := outboxFolder(t)
	db := kill(t, dir)
	code, out, _ := run("outbox", "purge", "--biz-no", "A1", "--dry-run", "--data", dir)
	require.Zero(t, code)
	require.Contains(t, out, "1 would be purged")
	code, out, _ = run("outbox", "purge", "--biz-no", "A1", "--reason", "test data", "--yes", "--data", dir)
	require.Zero(t, code)
	require.Contains(t, out, "1 of 1 dead letters purged")
	_, err := outbox.Get(t.Context(), db, ids[0])
	require.ErrorIs(t, err, outbox.ErrNotFound)
	require.Equal(t, outbox.StatusFail, status(t, db, ids[1]))
}
