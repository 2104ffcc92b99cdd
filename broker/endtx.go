package broker

import (
	"errors"
	"fmt"
	"strconv"
)

// handleEndTransaction carries out a producer's verdict. As RocketMQ it keeps no
// memory of verdicts: the request names offsets, and a half that is not open any
// more is answered with code 1, which one-way clients do not see.
func (b *Broker) handleEndTransaction(r *request) {
	f := r.fields()
	end := endTransaction{
		group:       f.str("producerGroup"),
		queueOffset: f.num("tranStateTableOffset", -1),
		physical:    f.num("commitLogOffset", -1),
		uniqKey:     f.str("msgId"),
	}
	verdict := f.num32("commitOrRollback", 0)
	if f.err != nil {
		r.fail(f.err)
		return
	}
	if end.queueOffset < 0 || end.physical < 0 {
		r.answer(respSystemError, "offsets of the half message are missing", nil, nil)
		return
	}
	switch verdict {
	case sysFlagTransactionEnded:
		end.commit = true
	case sysFlagRollback:
	case 0: // unknown: the half stays and is checked when it is due
		b.metrics.halfEnded.WithLabelValues("unknown").Inc()
		r.ok(nil, nil)
		return
	default:
		r.answer(respSystemError, fmt.Sprintf("commitOrRollback %d is not known", verdict), nil, nil)
		return
	}
	b.store.submit(&write{
		op:    "end",
		apply: func(tx *writeTx) error { return b.endHalf(tx, end) },
		done:  func(err error) { b.answerEnd(r, end, err) },
	})
}

type endTransaction struct {
	group                 string
	queueOffset, physical int64
	uniqKey               string
	commit                bool
}

func (b *Broker) answerEnd(r *request, end endTransaction, err error) {
	var rejected *rejection
	switch {
	case errors.As(err, &rejected):
		b.metrics.halfEnded.WithLabelValues("gone").Inc()
		r.fail(err)
	case err != nil:
		r.fail(err)
	default:
		verdict := "rollback"
		if end.commit {
			verdict = "commit"
		}
		b.metrics.halfEnded.WithLabelValues(verdict).Inc()
		r.ok(nil, nil)
	}
}

func (b *Broker) endHalf(tx *writeTx, end endTransaction) error {
	hr, err := findHalf(tx, end.physical, end.queueOffset)
	if err != nil {
		return err
	}
	if group := hr.m.props.value(propProducerGroup); group != end.group {
		return reject(respSystemError, fmt.Sprintf("the producer group %q is not the half's", end.group))
	}
	keep := b.cfg.Hooks.KeepHalf
	if keep == nil || !keep(hr.m.props.value(propUniqKey)) {
		if err := b.deleteHalf(tx, hr); err != nil {
			return err
		}
	}
	if !end.commit {
		return nil
	}
	m := realMessage(hr.m)
	m.sysFlag |= sysFlagTransactionEnded
	m.preparedOffset = end.physical
	return fatal(tx.append(m, b.newTopicQueues(m.topic)))
}

// realMessage is the message a half stands for, as consumers see it: properties
// of the half store are gone; PGROUP, UNIQ_KEY, TRANSACTION_CHECK_TIMES and the
// producer's own stay, as in RocketMQ.
func realMessage(half *message) *message {
	m := *half
	m.topic = half.props.value(propRealTopic)
	m.queueID, _ = strconv.Atoi(half.props.value(propRealQueueID)) // we wrote it
	m.props = half.props.without(propRealTopic, propRealQueueID, propTransaction)
	return &m
}
