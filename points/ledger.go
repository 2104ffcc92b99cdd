package points

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
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

// account is a row of t_points_account that this transaction has locked.
type account struct {
	UserID  int64
	Balance int64
	Version int64
	Status  string
}

// lockAccount makes the user's account if there is none. It comes first in every transaction: two messages of one user
// queue here and cannot deadlock further down, and an order's EARN and REVERSE see each other.
func lockAccount(tx *gorm.DB, d database.Dialect, userID int64) (account, error) {
	if err := tx.Exec(createAccount(d), userID).Error; err != nil {
		return account{}, err
	}
	var acc account
	err := tx.Raw("SELECT user_id, balance, version, status FROM t_points_account WHERE user_id = ?"+forUpdate(d), userID).Scan(&acc).Error
	return acc, err
}

// add inserts a record of the account. A duplicate comes back as the database's error for uk_msg_id or uk_order_type.
func (acc *account) add(tx *gorm.DB, msgID string, f facts, typ RecordType, points int64) error {
	rec := Record{
		MsgID: msgID, UserID: acc.UserID, OrderNo: f.OrderNo, Type: typ, Points: points, BalanceAfter: acc.Balance + points,
		FactsHash: f.hash(), CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
	}
	acc.Balance = rec.BalanceAfter
	return tx.Create(&rec).Error
}

// save writes the balance back.
func (acc account) save(tx *gorm.DB) error {
	res := tx.Exec("UPDATE t_points_account SET balance = ?, version = version + 1 WHERE user_id = ? AND version = ?",
		acc.Balance, acc.UserID, acc.Version)
	if res.Error != nil {
		return res.Error
	}
	if res.RowsAffected != 1 {
		return errors.New("account changed under its lock")
	}
	return nil
}

// book books what a message says inside tx.
func book(tx *gorm.DB, d database.Dialect, msgID string, f facts) (Outcome, error) {
	acc, err := lockAccount(tx, d, f.UserID)
	if err != nil {
		return "", err
	}
	outcome := Credited
	switch {
	case f.recordType() == Reverse:
		outcome, err = reverse(tx, &acc, msgID, f)
	case acc.Status == accountFrozen:
		outcome, err = Rejected, acc.add(tx, msgID, f, Earn, 0)
	default:
		err = acc.add(tx, msgID, f, Earn, f.earned())
	}
	if err != nil {
		return "", err
	}
	return outcome, acc.save(tx)
}

// reverse takes back what the order's EARN has given, also from a frozen account. Without an EARN it writes a
// placeholder, so that one that comes later changes nothing.
func reverse(tx *gorm.DB, acc *account, msgID string, f facts) (Outcome, error) {
	var earned Record
	err := tx.Where("order_no = ? AND type = ?", f.OrderNo, Earn).Take(&earned).Error
	outcome := Reversed
	switch {
	case errors.Is(err, gorm.ErrRecordNotFound):
		outcome = ReversedFirst
		err = acc.add(tx, placeholderID(f.OrderNo), f, Earn, 0)
	case err == nil && !earned.fits(f):
		return "", &contradictionError{earned}
	}
	if err != nil {
		return "", err
	}
	return outcome, acc.add(tx, msgID, f, Reverse, -earned.Points)
}

// placeholderPrefix begins the msg_id of an EARN that came after its REVERSE and was booked by it; no message's does.
const placeholderPrefix = "void:"

func placeholderID(orderNo string) string { return placeholderPrefix + orderNo }

func (r Record) placeholder() bool { return strings.HasPrefix(r.MsgID, placeholderPrefix) }

// fits reports whether an EARN and the facts of a REVERSE can be of one order. A rejected EARN has no points, whatever
// the amount was.
func (r Record) fits(f facts) bool {
	return r.placeholder() || r.UserID == f.UserID && (r.Points == 0 || r.Points == f.earned())
}

// contradictionError says that a message contradicts a record.
type contradictionError struct{ rec Record }

func (e *contradictionError) Error() string {
	return fmt.Sprintf("order_no %s was booked before with other facts (record %d)", e.rec.OrderNo, e.rec.ID)
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

// booked finds the record that stopped a message: by message id, else by order and kind.
func (l *Ledger) booked(ctx context.Context, msgID string, f facts) (Record, error) {
	var rec Record
	// The writer's pool: the record was committed a moment ago and must be seen.
	db := l.db.Write.WithContext(ctx)
	err := db.Where("msg_id = ?", msgID).Take(&rec).Error
	if errors.Is(err, gorm.ErrRecordNotFound) {
		err = db.Where("order_no = ? AND type = ?", f.OrderNo, f.recordType()).Take(&rec).Error
	}
	if err != nil {
		return Record{}, fmt.Errorf("read record of message %s or order %s: %w", msgID, f.OrderNo, err)
	}
	return rec, nil
}
