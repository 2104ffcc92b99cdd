package broker

import (
	"fmt"
	"strconv"
	"time"
)

const (
	pullCommit       = 1 // sysFlag bits of a pull
	pullSuspend      = 2
	pullSubscription = 4

	maxPullCount = 1024
	maxPullBytes = 1 << 20
	// maxSuspend is below the 30 s after which clients give an answer up.
	maxSuspend = 25 * time.Second
)

// pull is one PULL_MESSAGE request.
type pull struct {
	r        *request
	group    string
	topic    string
	queue    int
	offset   int64
	count    int
	sub      subscription
	suspend  time.Duration // 0: do not wait
	deadline time.Time
}

func (b *Broker) handlePull(r *request) {
	f := r.fields()
	pl := &pull{
		r: r, group: f.need("consumerGroup"), topic: f.need("topic"), queue: f.num32("queueId", -1),
		offset: f.num("queueOffset", 0), count: f.num32("maxMsgNums", 32),
	}
	flags := f.num32("sysFlag", 0)
	commit := f.num("commitOffset", -1)
	suspend := f.num("suspendTimeoutMillis", 0)
	if f.err != nil {
		r.fail(f.err)
		return
	}
	pl.count = min(max(pl.count, 1), maxPullCount)
	if flags&pullSuspend != 0 {
		pl.suspend = min(time.Duration(min(max(suspend, 0), maxSuspend.Milliseconds()))*time.Millisecond, maxSuspend)
		pl.deadline = time.Now().Add(pl.suspend)
	}
	if err := b.checkPull(pl); err != nil {
		r.fail(err)
		return
	}
	if flags&pullCommit != 0 {
		b.offsets.set(pl.group, pl.topic, pl.queue, commit)
	}
	if flags&pullSubscription != 0 {
		pl.sub = parseSubscription(r.cmd.Ext["subscription"], r.cmd.Ext["expressionType"])
	} else if sub, ok := b.groups.subscription(pl.group, pl.topic); ok {
		pl.sub = sub
	} else { // its heartbeat follows; until then it gets everything and filters itself
		r.c.early.Store(true)
	}
	if !pl.sub.supported() {
		r.answer(respSystemError, fmt.Sprintf("the broker does not filter by %s", pl.sub.kind), nil, nil)
		return
	}
	b.runPull(pl)
}

func (b *Broker) checkPull(pl *pull) error {
	info := b.store.topic(pl.topic)
	switch {
	case info == nil && !oneQueue(pl.topic):
		return reject(respTopicNotExist, fmt.Sprintf("topic[%s] not exist", pl.topic))
	case info != nil && info.Perm&permRead == 0:
		return reject(respNoPermission, fmt.Sprintf("the topic[%s] pulling message is forbidden", pl.topic))
	case pl.queue < 0, info != nil && pl.queue >= info.Read, info == nil && pl.queue > 0:
		return reject(respSystemError, fmt.Sprintf("queueId[%d] is illegal, topic:[%s]", pl.queue, pl.topic))
	}
	return nil
}

// queueRange of the pull's queue; empty when the topic does not exist yet.
func (b *Broker) pullRange(pl *pull) (queueKey, queueRange, bool) {
	info := b.store.topic(pl.topic)
	if info == nil {
		return queueKey{}, queueRange{}, false
	}
	key := info.key(pl.queue)
	return key, b.store.queueRange(key), true
}

// runPull answers the pull or parks it. Codes and next offsets are those of
// RocketMQ's DefaultMessageStore.getMessage.
func (b *Broker) runPull(pl *pull) {
	if b.stopping.Load() {
		pl.stopping()
		return
	}
	key, rng, ok := b.pullRange(pl)
	switch {
	case pl.offset < rng.min, rng.max == 0 && pl.offset > 0:
		pl.answer(b, respPullOffsetMoved, rng.min, nil)
	case pl.offset > rng.max && rng.min == 0:
		pl.answer(b, respPullOffsetMoved, rng.min, nil)
	case pl.offset > rng.max:
		pl.answer(b, respPullOffsetMoved, rng.max, nil)
	case !ok || pl.offset == rng.max:
		b.park(pl)
	default:
		res, err := b.store.read(key, pl.offset, pl.count, maxPullBytes, pl.sub.match())
		switch {
		case err != nil:
			pl.r.fail(err)
		case res.count > 0:
			pl.answer(b, respSuccess, res.next, res.body)
		default:
			pl.answer(b, respPullRetryImmediately, max(res.next, pl.offset), nil)
		}
	}
}

// park lets the pull wait, if it may.
func (b *Broker) park(pl *pull) {
	offset := pl.offset // add gives pl away
	if pl.suspend <= 0 || !b.parked.add(pl) {
		if b.stopping.Load() {
			pl.stopping()
			return
		}
		pl.nothing(b)
		return
	}
	// A message may have come between the look and add; its wake-up is gone.
	if key, rng, ok := b.pullRange(pl); ok && rng.max > offset {
		b.parked.arrived([]queueKey{key})
	}
}

// resumePull looks again after messages arrived. A pull none of them matches
// waits on, behind them, instead of going back and forth.
func (b *Broker) resumePull(pl *pull) {
	if pl.r.c.closed.Load() {
		return
	}
	key, rng, ok := b.pullRange(pl)
	if !ok || pl.offset >= rng.max {
		b.park(pl)
		return
	}
	res, err := b.store.read(key, pl.offset, pl.count, maxPullBytes, pl.sub.match())
	switch {
	case err != nil:
		pl.r.fail(err)
	case res.count > 0:
		pl.answer(b, respSuccess, res.next, res.body)
	default:
		pl.offset = max(res.next, pl.offset)
		b.park(pl)
	}
}

// stopping makes the client back off for 3 s and then connect anew. "Nothing
// found" would make it pull again at once, into a connection that is about to
// close, and it waits for the answer of such a pull for 30 s.
func (pl *pull) stopping() {
	pl.r.answer(respServiceNotAvailable, "the broker is stopping", nil, nil)
}

func (pl *pull) nothing(b *Broker) { pl.answer(b, respPullNotFound, pl.offset, nil) }

// answer always names the next offset: to the client a missing one is 0, which
// replays the queue.
func (pl *pull) answer(b *Broker, code int, next int64, body []byte) {
	_, rng, _ := b.pullRange(pl)
	pl.r.answer(code, "", map[string]string{
		"nextBeginOffset":      strconv.FormatInt(next, 10),
		"minOffset":            strconv.FormatInt(rng.min, 10),
		"maxOffset":            strconv.FormatInt(rng.max, 10),
		"suggestWhichBrokerId": "0",
	}, body)
}
