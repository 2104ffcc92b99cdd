package broker

import (
	"errors"
	"fmt"
)

var errBadBatch = errors.New("malformed batch body")

// maxBatchCount bounds the messages of one batch: the answer names an id for each.
const maxBatchCount = 8192

// batchItem is one message of a batch body. Body aliases the request.
type batchItem struct {
	flag  int32
	body  []byte
	props properties
}

// decodeBatch decodes the body of SEND_BATCH_MESSAGE: total, magic, crc, flag,
// bodyLen, body, int16 propLen, props for each message. Clients leave magic and
// crc zero, so they are not looked at.
func decodeBatch(b []byte) ([]batchItem, error) {
	var items []batchItem
	for len(b) > 0 {
		r := &reader{b: b}
		total := int(int32(r.u32()))
		if r.bad || total < 22 || total > len(b) {
			return nil, fmt.Errorf("%w: message %d claims %d of %d bytes", errBadBatch, len(items), total, len(b))
		}
		r.b = b[4:total]
		r.u32() // magic
		r.u32() // crc
		item := batchItem{flag: int32(r.u32())}
		item.body = r.take(int(int32(r.u32())))
		item.props = parseProperties(string(r.take(int(int16(r.u16())))))
		if r.bad || len(r.b) != 0 {
			return nil, fmt.Errorf("%w: message %d: lengths do not add up", errBadBatch, len(items))
		}
		if len(items) == maxBatchCount {
			return nil, fmt.Errorf("%w: more than %d messages", errBadBatch, maxBatchCount)
		}
		items = append(items, item)
		b = b[total:]
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("%w: empty", errBadBatch)
	}
	return items, nil
}
