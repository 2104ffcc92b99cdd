package points

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

//go:embed migrations
var migrations embed.FS

// Migrations is this package's line of migrations: t_points_record, t_points_account, t_dead_letter.
func Migrations() database.Line { return database.Line{Name: "points", Files: migrations} }

// RecordType is the kind of a ledger record.
type RecordType string

// The kinds of ledger records.
const (
	Earn    RecordType = "EARN"
	Reverse RecordType = "REVERSE"
)

// Record is one line of the ledger, never changed once written.
type Record struct {
	ID           int64
	MsgID        string
	UserID       int64
	OrderNo      string
	Type         RecordType
	Points       int64
	BalanceAfter int64
	FactsHash    string
	CreatedAt    time.Time
}

// TableName tells gorm the table.
func (Record) TableName() string { return "t_points_record" }

// Account is a user's balance and newest records.
type Account struct {
	UserID  int64
	Balance int64
	// Records are the newest first, at most MaxRecords.
	Records []Record
}

// MaxRecords is how many records an Account shows.
const MaxRecords = 100

// Ledger books points. It is safe for concurrent use.
type Ledger struct{ db *database.DB }

// NewLedger returns the ledger in the points database.
func NewLedger(db *database.DB) *Ledger { return &Ledger{db: db} }

// Account reads a user's balance and records, as one snapshot of neither: a record may be newer than the balance.
// A user without points has a zero balance and no records.
func (l *Ledger) Account(ctx context.Context, userID int64) (Account, error) {
	acc := Account{UserID: userID}
	db := l.db.Read.WithContext(ctx)
	if err := db.Where("user_id = ?", userID).Order("id DESC").Limit(MaxRecords).Find(&acc.Records).Error; err != nil {
		return Account{}, fmt.Errorf("read points of user %d: %w", userID, err)
	}
	if err := db.Raw("SELECT balance FROM t_points_account WHERE user_id = ?", userID).Scan(&acc.Balance).Error; err != nil {
		return Account{}, fmt.Errorf("read points of user %d: %w", userID, err)
	}
	return acc, nil
}

const accountFrozen = "FROZEN"

func ukMsgID() database.UniqueKey {
	return database.UniqueKey{Table: "t_points_record", Name: "uk_msg_id", Columns: []string{"msg_id"}}
}

func ukOrderType() database.UniqueKey {
	return database.UniqueKey{Table: "t_points_record", Name: "uk_order_type", Columns: []string{"order_no", "type"}}
}

// earn books an order's points inside tx and reports whether the account took them.
// A duplicate comes back as the database's error for uk_msg_id or uk_order_type.
func earn(tx *gorm.DB, d database.Dialect, msgID string, f facts) (rejected bool, err error) {
	// The account's row is locked first, in every transaction: two messages of one user queue here and cannot
	// deadlock further down.
	if err := tx.Exec(createAccount(d), f.UserID).Error; err != nil {
		return false, err
	}
	var acc struct {
		Balance, Version int64
		Status           string
	}
	if err := tx.Raw("SELECT balance, version, status FROM t_points_account WHERE user_id = ?"+forUpdate(d), f.UserID).Scan(&acc).Error; err != nil {
		return false, err
	}
	rec := Record{
		MsgID: msgID, UserID: f.UserID, OrderNo: f.OrderNo, Type: Earn, Points: f.earned(),
		FactsHash: f.hash(), CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
	}
	rejected = acc.Status == accountFrozen
	if rejected {
		rec.Points = 0
	}
	rec.BalanceAfter = acc.Balance + rec.Points
	if err := tx.Create(&rec).Error; err != nil {
		return false, err
	}
	res := tx.Exec("UPDATE t_points_account SET balance = ?, version = version + 1 WHERE user_id = ? AND version = ?",
		rec.BalanceAfter, f.UserID, acc.Version)
	if res.Error != nil {
		return false, res.Error
	}
	if res.RowsAffected != 1 {
		return false, errors.New("account changed under its lock")
	}
	return rejected, nil
}

func createAccount(d database.Dialect) string {
	if d == database.MySQL {
		return "INSERT INTO t_points_account (user_id, balance, version, status) VALUES (?, 0, 1, 'ACTIVE') ON DUPLICATE KEY UPDATE user_id = user_id"
	}
	return "INSERT INTO t_points_account (user_id, balance, version, status) VALUES (?, 0, 1, 'ACTIVE') ON CONFLICT (user_id) DO NOTHING"
}

func forUpdate(d database.Dialect) string {
	if d == database.MySQL {
		return " FOR UPDATE"
	}
	return "" // the transaction holds SQLite's one write lock already
}

// booked finds the record that stopped a message: by message id, else by order.
func (l *Ledger) booked(ctx context.Context, msgID, orderNo string) (Record, error) {
	var rec Record
	// The writer's pool: the record was committed a moment ago and must be seen.
	db := l.db.Write.WithContext(ctx)
	err := db.Where("msg_id = ?", msgID).Take(&rec).Error
	if errors.Is(err, gorm.ErrRecordNotFound) {
		err = db.Where("order_no = ? AND type = ?", orderNo, Earn).Take(&rec).Error
	}
	if err != nil {
		return Record{}, fmt.Errorf("read record of message %s or order %s: %w", msgID, orderNo, err)
	}
	return rec, nil
}
