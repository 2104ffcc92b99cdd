package broker

import (
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"go.uber.org/zap"
)

// checkBatch is the number of halves re-appended in one storage transaction.
const checkBatch = 128

// checkLoop asks producers about halves that are due. No error of one round
// ends it.
func (b *Broker) checkLoop() {
	for {
		wait := maxSleep
		if err := b.checkRound(); err != nil {
			b.log.Error("check-back round failed, trying again", zap.Error(err))
		} else if due, ok := b.halves.nextDue(); ok {
			wait = time.Duration(due-b.nowMS()) * time.Millisecond
		}
		if !b.sleepOrWake(wait, &b.checkWake) {
			return
		}
	}
}

// checkRound checks every half that is due now.
func (b *Broker) checkRound() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	for !b.stopping.Load() {
		due := b.halves.take(b.nowMS(), checkBatch)
		if len(due) == 0 {
			return nil
		}
		checks, err := b.reappend(due)
		if err != nil {
			b.halves.postpone(due, b.nowMS()+maxSleep.Milliseconds())
			return err
		}
		b.sendChecks(checks)
	}
	return nil
}

func (b *Broker) sendChecks(halves []*message) {
	unasked := make(map[string]int) // by producer group
	for _, half := range halves {
		if !b.sendCheck(half) {
			unasked[half.props.value(propProducerGroup)]++
		}
	}
	for group, n := range unasked {
		b.metrics.checks.WithLabelValues("no_producer").Add(float64(n))
		b.log.Warn("half messages are due for a check but no producer of their group is connected; the attempt counts",
			zap.String("producer_group", group), zap.Int("halves", n))
	}
}

// reappend counts one attempt for each half and stores it under new offsets, or
// gives it up. It returns the ones to ask about. The attempt is counted before
// the question is sent, so that a half that crashes its producer ends too.
func (b *Broker) reappend(due []int64) ([]*message, error) {
	var checks []*message
	err := b.store.do("check", func(tx *writeTx) error {
		checks = checks[:0]
		for _, physical := range due {
			m, err := b.reappendOne(tx, physical)
			if err != nil {
				return err
			}
			if m != nil {
				checks = append(checks, m)
			}
		}
		return nil
	})
	return checks, err
}

// reappendOne returns nil when there is nothing to ask.
func (b *Broker) reappendOne(tx *writeTx, physical int64) (*message, error) {
	value := tx.bucket("half").Get(intKey(physical))
	if value == nil {
		return nil, nil // ended since it became due
	}
	hr, err := decodeHalf(value)
	if err != nil {
		b.log.Error("half message cannot be read, it is not checked again", zap.Int64("physical_offset", physical), zap.Error(err))
		tx.then(func() { b.halves.remove(physical) })
		return nil, nil
	}
	times := checkTimes(hr.m)
	if times >= b.cfg.CheckMax {
		if err := b.deleteHalf(tx, hr); err != nil {
			return nil, err
		}
		return nil, fatal(b.discard(tx, physical, hr))
	}
	if err := takeHalf(tx, hr); err != nil {
		return nil, err
	}
	hr.former = append(hr.former, halfOffset{physical, hr.m.queueOffset})
	hr.m.props = hr.m.props.with(propCheckTimes, strconv.Itoa(times+1))
	due := b.nowMS() + b.cfg.CheckInterval.Milliseconds()
	if err := putHalf(tx, hr); err != nil {
		return nil, fatal(err)
	}
	now := hr.m.physicalOffset
	tx.then(func() { b.halves.move(physical, now, due) })
	if err := putAliases(tx, hr.m.physicalOffset, hr.former); err != nil {
		return nil, err
	}
	return hr.m, nil
}

// putAliases makes a half's former offsets lead to its current one.
func putAliases(tx *writeTx, physical int64, former []halfOffset) error {
	for _, f := range former {
		value := binary.BigEndian.AppendUint64(intKey(physical), uint64(f.queue))
		if err := tx.bucket("alias").Put(intKey(f.physical), value); err != nil {
			return err
		}
	}
	return nil
}

// discard gives a half up: it goes to TRANS_CHECK_MAX_TIME_TOPIC with its
// REAL_TOPIC, REAL_QID, PGROUP and UNIQ_KEY, for a rescuer, and is never checked
// again. As in RocketMQ a verdict that comes later is still carried out.
func (b *Broker) discard(tx *writeTx, physical int64, hr *halfRecord) error {
	value, err := hr.encode()
	if err != nil {
		return err
	}
	if err := tx.bucket("discarded").Put(intKey(physical), value); err != nil {
		return err
	}
	if err := putAliases(tx, physical, hr.former); err != nil {
		return err
	}
	half := hr.m
	m := *half
	m.topic, m.queueID = topicDiscarded, 0
	tx.then(func() {
		b.metrics.discarded.Inc()
		b.log.Warn("half message given up after its checks",
			zap.String("uniq_key", half.props.value(propUniqKey)), zap.String("producer_group", half.props.value(propProducerGroup)),
			zap.String("topic", half.props.value(propRealTopic)), zap.Int("checks", checkTimes(half)))
	})
	return tx.append(&m, 1)
}

// sendCheck asks one live producer of the half's group; false when there is
// none. The half is the stored one; the question carries the message it stands for.
func (b *Broker) sendCheck(half *message) bool {
	group := half.props.value(propProducerGroup)
	c := b.groups.nextProducer(group)
	if c == nil {
		return false
	}
	cmd, err := checkCommand(half, messageID(b.storeHost, half.physicalOffset))
	if err != nil {
		b.log.Error("check-back cannot be encoded", zap.Error(err))
		return true
	}
	var action Action
	if hook := b.cfg.Hooks.OnCheck; hook != nil {
		action = hook(Check{
			Remote: c.remote, ProducerGroup: group, Topic: half.props.value(propRealTopic),
			UniqKey: half.props.value(propUniqKey), Attempt: checkTimes(half),
		})
	}
	b.metrics.checks.WithLabelValues("sent").Inc()
	b.after(action.Delay, func() {
		switch {
		case action.Disconnect:
			c.close()
		case !action.Drop:
			c.send(cmd)
		}
	})
	return true
}

func checkCommand(half *message, offsetMsgID string) (*command, error) {
	m := *half
	m.topic = half.props.value(propRealTopic)
	m.queueID, _ = strconv.Atoi(half.props.value(propRealQueueID)) // we wrote it
	body, err := m.encode()
	if err != nil {
		return nil, err
	}
	uniqKey := half.props.value(propUniqKey)
	return &command{
		Code: codeCheckTransaction, Flag: flagOneWay, Body: body,
		Ext: map[string]string{
			"tranStateTableOffset": strconv.FormatInt(half.queueOffset, 10),
			"commitLogOffset":      strconv.FormatInt(half.physicalOffset, 10),
			"msgId":                uniqKey,
			"transactionId":        uniqKey,
			"offsetMsgId":          offsetMsgID,
		},
	}, nil
}
