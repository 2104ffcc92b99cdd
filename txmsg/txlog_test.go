package txmsg_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/conformance"
	"github.com/halfbox/halfbox/internal/database"
)

// recorded publishes local transactions that leave no row of their own: they are recorded in t_tx_log, and the suite's
// row is only what it looks at.
type recorded struct{ conformance.Publisher }

func (r recorded) PublishInTx(ctx context.Context, ev halfbox.Event, local func(*gorm.DB, halfbox.Attempt) error) (halfbox.Receipt, error) {
	return r.Publisher.PublishInTx(ctx, ev, func(tx *gorm.DB, at halfbox.Attempt) error {
		if err := local(tx, at); err != nil {
			return err
		}
		return txlog.Record(tx, at, ev.Type, ev.Subject)
	})
}

// inTxLog makes a strategy record its transactions, whose check-backs are answered by txlog.
func inTxLog(s conformance.Strategy) conformance.Strategy {
	s.Publisher = recorded{s.Publisher}
	s.Inserts++
	return s
}

func newTxLogResolver(t testing.TB, db *database.DB) checkback.Resolver {
	t.Helper()
	require.NoError(t, db.Migrate(context.Background(), txlog.Migrations()))
	return txlog.NewResolver(db)
}

// The contract holds as well for transactions that are recorded in t_tx_log.
func TestConformanceInTxLog(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T, hooks database.Hooks) conformance.Strategy {
		return inTxLog(newRig(t, rigOptions{hooks: hooks, resolver: newTxLogResolver}).strategy())
	})
}

func TestConformanceInTxLogOnRealEngines(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T, hooks database.Hooks) conformance.Strategy {
		return inTxLog(realStrategy(t, hooks, newTxLogResolver))
	})
}
