package compare

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
)

// Recorder writes down inside the service when each order was committed and what the consumer was given. Each line is
// written at once, so that it survives a kill of the process. It is safe for concurrent use.
//
//	c MSG_ID WHEN                              COMMIT was confirmed
//	d MSG_ID ORDER_NO STORED RECEIVED HANDLED  the consumer was given the message, and is done with it
//
// Times are nanoseconds since 1970.
type Recorder struct {
	mu   sync.Mutex
	file *os.File
	err  error
}

// NewRecorder opens the file at path, which may hold the lines of an earlier process.
func NewRecorder(path string) (*Recorder, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("compare: records: %w", err)
	}
	return &Recorder{file: f}, nil
}

// Close reports the first error there was in writing.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.file.Close(); r.err == nil {
		r.err = err
	}
	return r.err
}

func (r *Recorder) line(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := fmt.Fprintf(r.file, format, args...); err != nil && r.err == nil {
		r.err = err
	}
}

// Delivered writes down a delivery to the consumer that has ended well.
func (r *Recorder) Delivered(msgID, orderNo string, stored, received, handled time.Time) {
	r.line("d %s %s %d %d %d\n", msgID, orderNo, stored.UnixNano(), received.UnixNano(), handled.UnixNano())
}

// Publisher wraps a strategy so that its commits are written down.
func (r *Recorder) Publisher(p order.Publisher) order.Publisher { return recorded{r, p} }

type recorded struct {
	recorder *Recorder
	next     order.Publisher
}

// PublishInTx adds a note of the time to the transaction.
func (p recorded) PublishInTx(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error) {
	return p.next.PublishInTx(ctx, ev, func(tx *gorm.DB, at halfbox.Attempt) error {
		if err := local(tx, at); err != nil {
			return err
		}
		database.OnCommit(tx, func() { p.recorder.line("c %s %d\n", at.MsgID, time.Now().UnixNano()) })
		return nil
	})
}

// records are a file of lines, read.
type records struct {
	committed  map[string]time.Time // by message id
	deliveries []delivery
}

type delivery struct {
	msgID, orderNo            string
	stored, received, handled time.Time
}

// readRecords reads what a Recorder wrote. A line that a kill cut short is left out.
func readRecords(path string) (records, error) {
	rec := records{committed: map[string]time.Time{}}
	f, err := os.Open(path)
	if err != nil {
		return rec, fmt.Errorf("compare: records: %w", err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var id, no string
		var a, b, c int64
		if n, _ := fmt.Sscanf(lines.Text(), "c %s %d", &id, &a); n == 2 {
			rec.committed[id] = time.Unix(0, a)
		} else if n, _ := fmt.Sscanf(lines.Text(), "d %s %s %d %d %d", &id, &no, &a, &b, &c); n == 5 {
			rec.deliveries = append(rec.deliveries, delivery{id, no, time.Unix(0, a), time.Unix(0, b), time.Unix(0, c)})
		}
	}
	return rec, nil
}

// first returns the first delivery of each order.
func (r records) first() map[string]delivery {
	first := map[string]delivery{}
	for _, d := range r.deliveries {
		if f, ok := first[d.orderNo]; !ok || d.handled.Before(f.handled) {
			first[d.orderNo] = d
		}
	}
	return first
}
