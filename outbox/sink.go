package outbox

import "context"

// Sink sends records to where they are to go. Its methods are called by one goroutine at a time.
type Sink interface {
	// Name is the sink's configured name, the one that records carry. It never changes.
	Name() string
	// Send delivers batch, whose records all have the same Destination. nil means that the far end has confirmed
	// every record; an error says nothing about any of them. An error wraps ErrRefused, ErrUnreachable or ErrTimeout
	// where that is known. Send returns soon after ctx has ended, and must not keep the slice.
	Send(ctx context.Context, batch []Record) error
}

// BatchLimiter is a Sink that takes no more than so much in one Send.
type BatchLimiter interface {
	// BatchLimit is the largest batch, in records and in bytes of payload; 0 is no limit.
	// A single record over the limit is sent all the same: the sink refuses it.
	BatchLimit() (records, bytes int)
}

// Partitioner is a Sink that sends each batch to one partition of a destination.
type Partitioner interface {
	// Partitions returns the partition of each record, which depends on its PartitionKey and Destination alone as long
	// as the far end has the same partitions. Records with the same one are sent in one batch. After an error they are
	// sent one by one, and Send says what is wrong.
	Partitions(ctx context.Context, batch []Record) ([]string, error)
}

// Prober is a Sink that can tell "does not answer" from "does not answer to this event". Without it, more than 200
// events to which a sink never answers hold up everything behind them: they look like an outage.
type Prober interface {
	// Probe returns nil if the far end answers at all.
	Probe(ctx context.Context) error
}

// chunk cuts rows into what one Send takes: the same destination and partition, within the sink's limit, in the given
// order. A row for which alone is true is cut out on its own, after the others. partitions has one for each row, or is nil.
func chunk(rows []row, partitions []string, sink Sink, alone func(row) bool) [][]row {
	maxRows, maxBytes := 0, 0
	if l, ok := sink.(BatchLimiter); ok {
		maxRows, maxBytes = l.BatchLimit()
	}
	type place struct{ destination, partition string }
	var chunks, singles [][]row
	open := map[place]int{} // its chunk that still has room
	size := map[int]int{}   // chunk -> bytes
	for i, r := range rows {
		if alone(r) {
			singles = append(singles, []row{r})
			continue
		}
		to := place{destination: r.rec.Destination}
		if partitions != nil {
			to.partition = partitions[i]
		}
		at, ok := open[to]
		full := ok && (maxRows > 0 && len(chunks[at]) >= maxRows || maxBytes > 0 && size[at]+len(r.rec.Payload) > maxBytes)
		if !ok || full {
			at = len(chunks)
			chunks = append(chunks, nil)
			open[to] = at
		}
		chunks[at] = append(chunks[at], r)
		size[at] += len(r.rec.Payload)
	}
	return append(chunks, singles...)
}
