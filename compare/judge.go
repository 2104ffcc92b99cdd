package compare

import (
	"context"
	"fmt"
	"time"

	"github.com/halfbox/halfbox/internal/database"
)

// Judgement is what the databases say about one site: invariants I1, I2 and I4 of docs/guarantees.md.
type Judgement struct {
	// Committed is the number of orders in t_order.
	Committed int `json:"committed"`
	// Lost orders are committed and have no points (I1).
	Lost int `json:"lost"`
	// Wrong orders have points of another amount or user, or more than one record (I1); Phantom ones have points and are
	// not in t_order (I2); Unbalanced accounts have a balance that is not the sum of their ledger (I4).
	Wrong      int `json:"wrong"`
	Phantom    int `json:"phantom"`
	Unbalanced int `json:"unbalanced"`
	// Duplicates is how often the consumer was given an order that it had been given before. It books each once.
	Duplicates int `json:"duplicates_delivered"`
	// Deliveries is how often it was given one at all.
	Deliveries int `json:"deliveries"`
	// Unsettled is why it cannot be said that what is missing is lost; empty when it can.
	Unsettled string `json:"unsettled,omitempty"`
}

// bad is how many things are wrong that are not losses.
func (j Judgement) bad() int { return j.Wrong + j.Phantom + j.Unbalanced }

// lost says how many are lost, or without points when nobody can say that they are lost.
func (j Judgement) lost() string {
	if j.Unsettled != "" && j.Lost > 0 {
		return fmt.Sprintf("%d? of %d", j.Lost, j.Committed)
	}
	return fmt.Sprintf("%d of %d", j.Lost, j.Committed)
}

type orderRow struct {
	OrderNo             string
	MsgID               string
	UserID, AmountCents int64
	CreatedAt           time.Time
}

type ledgerRow struct {
	OrderNo        string
	UserID, Points int64
}

// readOrders reads the committed orders by number.
func readOrders(ctx context.Context, db *database.DB) (map[string]orderRow, error) {
	var rows []orderRow
	if err := db.Read.WithContext(ctx).Raw("SELECT order_no, msg_id, user_id, amount_cents, created_at FROM t_order WHERE status <> 'VOID'").Scan(&rows).Error; err != nil {
		return nil, fmt.Errorf("compare: read orders: %w", err)
	}
	orders := make(map[string]orderRow, len(rows))
	for _, r := range rows {
		orders[r.OrderNo] = r
	}
	return orders, nil
}

// readLedger reads what was earned.
func readLedger(ctx context.Context, db *database.DB) ([]ledgerRow, error) {
	var rows []ledgerRow
	if err := db.Read.WithContext(ctx).Raw("SELECT order_no, user_id, points FROM t_points_record WHERE type = 'EARN'").Scan(&rows).Error; err != nil {
		return nil, fmt.Errorf("compare: read ledger: %w", err)
	}
	return rows, nil
}

// missing are the committed orders without points.
func missing(ctx context.Context, s Site) (map[string]orderRow, error) {
	orders, err := readOrders(ctx, s.Order())
	if err != nil {
		return nil, err
	}
	ledger, err := readLedger(ctx, s.Points())
	if err != nil {
		return nil, err
	}
	for _, l := range ledger {
		delete(orders, l.OrderNo)
	}
	return orders, nil
}

// judge compares the databases. Nothing may be on its way any more.
func judge(ctx context.Context, s Site) (Judgement, error) {
	orders, err := readOrders(ctx, s.Order())
	if err != nil {
		return Judgement{}, err
	}
	ledger, err := readLedger(ctx, s.Points())
	if err != nil {
		return Judgement{}, err
	}
	rec, err := readRecords(s.Records())
	if err != nil {
		return Judgement{}, err
	}
	j := compareBooks(orders, ledger)
	// A balance is the sum of its records, and there is no record without an account.
	err = s.Points().Read.WithContext(ctx).Raw(`SELECT COUNT(*) FROM t_points_account a WHERE a.balance <>
		(SELECT COALESCE(SUM(r.points), 0) FROM t_points_record r WHERE r.user_id = a.user_id)`).Scan(&j.Unbalanced).Error
	if err != nil {
		return Judgement{}, fmt.Errorf("compare: read accounts: %w", err)
	}
	seen := map[string]bool{}
	for _, d := range rec.deliveries {
		seen[d.orderNo] = true
	}
	j.Deliveries = len(rec.deliveries)
	j.Duplicates = len(rec.deliveries) - len(seen)
	return j, nil
}

// compareBooks holds the ledger against the orders. An order earns one point for each full hundred cents.
func compareBooks(orders map[string]orderRow, ledger []ledgerRow) Judgement {
	j := Judgement{Committed: len(orders)}
	booked := map[string]int{}
	for _, l := range ledger {
		o, known := orders[l.OrderNo]
		booked[l.OrderNo]++
		switch {
		case !known:
			j.Phantom++
		case booked[l.OrderNo] > 1, l.UserID != o.UserID, l.Points != o.AmountCents/100:
			j.Wrong++
		}
	}
	for no := range orders {
		if booked[no] == 0 {
			j.Lost++
		}
	}
	return j
}

// unsent counts the event records that are still to be sent.
func unsent(ctx context.Context, s Site) (n int, err error) {
	err = s.Order().Read.WithContext(ctx).Raw("SELECT COUNT(*) FROM t_event_record WHERE status IN ('WAIT', 'SENDING')").Scan(&n).Error
	if err != nil {
		err = fmt.Errorf("compare: read event records: %w", err)
	}
	return n, err
}

// databaseBytes is the size of the order database. MySQL gives it in whole extents, so that small ones are coarse.
func databaseBytes(ctx context.Context, db *database.DB) (n int64, err error) {
	if db.Dialect == database.SQLite {
		err = db.Read.WithContext(ctx).Raw("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()").Scan(&n).Error
	} else {
		var ignored []map[string]any
		if err = db.Write.WithContext(ctx).Raw("ANALYZE TABLE t_order, t_event_record").Scan(&ignored).Error; err == nil {
			err = db.Read.WithContext(ctx).Raw(`SELECT /*+ SET_VAR(information_schema_stats_expiry=0) */ COALESCE(SUM(data_length + index_length), 0)
				FROM information_schema.tables WHERE table_schema = DATABASE()`).Scan(&n).Error
		}
	}
	if err != nil {
		err = fmt.Errorf("compare: size of the order database: %w", err)
	}
	return n, err
}
