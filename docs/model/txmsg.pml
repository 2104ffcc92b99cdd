/*
 * txmsg and check-back: half message, local transaction, END_TRANSACTION, checks, tombstones, discard, rescue and
 * fallback. README.md says which code each part stands for, what is left out, and how to read a trail.
 *
 * Build with   KEYED     one business key: callers repeat one request, the database holds one order at most
 *              without   one request whose local transaction has no unique key of its own (t_tx_log)
 *              AGAIN     an attempt that a check has voided is followed by another one
 *              TXLOG     with KEYED: the key is a condition that one transaction at most meets (a cancellation's UPDATE),
 *                        and the record is t_tx_log, where a check finds no other attempt
 *              TWO_CHECKERS  two instances answer checks of one half message at the same time
 *              TWO_HALVES  with KEYED: the repeated request sends a half message too, not only an event record
 * Variants     NO_TOMBSTONE, ERROR_IS_ROLLBACK, NO_CAS, NO_CONDITION: each leaves one rule out and must fail.
 *              NEVER_TWICE asserts more than is promised and must fail too.
 */

#ifndef CHECKMAX
#define CHECKMAX 2              /* checks of one half message before it is discarded */
#endif
#ifndef CRASHES
#define CRASHES 1               /* processes that die, each at any step */
#endif
#ifndef ERRORS
#define ERRORS 1                /* database errors that a check or the rescue meets */
#endif
#ifndef DOUBLES
#define DOUBLES 1               /* messages doubled, and verdicts that the broker forgets */
#endif

/*
 * Attempts. 0 and 1 are the half messages of caller 0 (1 follows when 0 was voided), 2 is that of caller 1, who
 * repeats the request; 3 and 4 are their fallbacks, which go by the outbox.
 */
#define HALVES 3
#define N 5
#ifdef KEYED
#define CALLERS 2
#else
#define CALLERS 1
#endif
#define FIRST(c)    ((c) * 2)
#define FALLBACK(c) (3 + (c))
#define BIT(i)      (1 << (i))
#define HAS(set, i) (((set) >> (i)) & 1)

/* What a local transaction came to, and what a caller is told. */
#define NOTHING    0
#define COMMITTED  1
#define ROLLEDBACK 2
#define UNKNOWN    3
#define VOIDED     4

/* Attempt states: changed by compare-and-swap only. */
#define WAITING   0
#define LOCAL     1
#define ABANDONED 2

/* The database. Sets of attempts. */
byte open;        /* the local transaction has inserted its row and is not over: others wait for its keys */
byte committed;   /* the row is there: it is the transaction record */
byte tomb;        /* tombstones */
byte record;      /* event records of the outbox */
byte sent;        /* event records that the relay has sent */
byte orphan;      /* COMMIT was sent, nobody waits for its answer any more */

/* The broker, by half message. A check appends the half message again: copy counts that, the verdict names a copy. */
bool live[HALVES];      /* its newest copy has no verdict yet */
byte copy[HALVES];
byte asks[HALVES];      /* questions under way, a set of copies */
byte commits[HALVES];   /* COMMITs under way, a set of copies: END_TRANSACTION and answers to checks */
byte rollbacks[HALVES];
byte discarded;         /* set of half messages */
chan topic = [HALVES] of { byte }; /* TRANS_CHECK_MAX_TIME_TOPIC; its head is the rescue's position */

/* What the consumer got, and what excuses a second delivery under the same id. */
byte delivered[N];
byte crossed;     /* a check was asked before the commit was carried out */
byte doubled;     /* the broker got a message twice or forgot a verdict */

/* The producers. */
byte state[HALVES];
byte result[HALVES];
byte told[2];
bool dead[2];

byte crashes = CRASHES;
byte errors = ERRORS;
byte doubles = DOUBLES;

#define OWNER(i) (((i) == 2 || (i) == 4) -> 1 : 0)

/* Every delivery is checked here, whoever makes it. For use in d_step. */
inline deliver(i) {
	assert(HAS(committed, i));                                 /* no message without a committed order */
	other = 0;
	do
	:: other < N ->
		assert(other == i || delivered[other] == 0);           /* no order under two msg_ids */
		other++
	:: else -> break
	od;
	other = 0;
#ifdef NEVER_TWICE
	assert(delivered[i] == 0);                                 /* must fail: it does happen */
#endif
	assert(delivered[i] == 0 ||                                /* twice under one id only after ... */
		HAS(discarded, i) || HAS(crossed, i) || HAS(doubled, i));
	if
	:: delivered[i] < 2 -> delivered[i]++
	:: else
	fi
}

/* COMMIT: the row, and under delivery outbox its event record, in one transaction. */
inline commit(i) {
	open = open & ~BIT(i);
	orphan = orphan & ~BIT(i);
	committed = committed | BIT(i);
	if
	:: i >= HALVES -> record = record | BIT(i)
	:: else
	fi
}

/*
 * One local transaction under attempt i; r is what it came to. Between the two steps, and before and after them,
 * anything may happen, the death of the process included.
 */
inline local_transaction(i, r) {
	if
	:: d_step { HAS(tomb, i) -> r = VOIDED } -> goto ended_tx          /* uk_msg_id: it meets its own tombstone */
#if defined(KEYED) && !defined(NO_CONDITION)
	:: d_step { committed != 0 && !HAS(tomb, i) -> r = ROLLEDBACK } -> goto ended_tx /* the business key is taken */
	:: d_step { committed == 0 && open == 0 && !HAS(tomb, i) -> open = open | BIT(i) }
#else
	:: d_step { !HAS(tomb, i) -> open = open | BIT(i) }
#endif
	:: r = ROLLEDBACK -> goto ended_tx                         /* an error, a lock wait, its deadline */
	fi;
	if
	:: d_step { commit(i); r = COMMITTED }
	:: d_step { orphan = orphan | BIT(i); r = UNKNOWN }        /* COMMIT's answer is lost; the database decides later */
	:: d_step { open = open & ~BIT(i); r = ROLLEDBACK }
	fi;
ended_tx:
}

/* The goroutine that sends the half message and, inside the same call of the client, runs the local transaction. */
proctype Sender(byte i; byte c) {
	byte r;
	{
		if
		:: goto over                                           /* not stored */
		:: d_step { live[i] = true; copy[i] = 0 } -> goto over /* stored, the acknowledgement is lost */
		:: d_step { live[i] = true; copy[i] = 0 }              /* stored, and acknowledged in time or late */
		fi;
#ifdef NO_CAS
		state[i] = LOCAL;
#else
		if
		:: d_step { state[i] == WAITING -> state[i] = LOCAL }
		:: d_step { state[i] == ABANDONED -> rollbacks[i] = rollbacks[i] | BIT(0) } -> goto over
		fi;
#endif
		local_transaction(i, r);
		d_step {                                               /* the caller has its answer; END_TRANSACTION, which may be lost */
			result[i] = r;
			if
			:: r == COMMITTED -> commits[i] = commits[i] | BIT(0)
			:: r == ROLLEDBACK || r == VOIDED -> rollbacks[i] = rollbacks[i] | BIT(0)
			:: r == UNKNOWN
			fi
		}
	} unless { dead[c] };
over:	skip
}

/* One call of PublishInTx. */
proctype Caller(byte c) {
	byte i, r;
	{
		i = FIRST(c);
#ifdef KEYED
		if
		:: committed != 0 -> told[c] = COMMITTED; goto over    /* the key is there already: a replay */
		:: committed == 0
		fi;
#endif
again:		if
		:: goto fallback                                       /* the breaker is open, or there is no route */
#ifndef TWO_HALVES
		:: c == 0 -> run Sender(i, c)
#else
		:: run Sender(i, c)
#endif
		fi;
		if
		:: state[i] == LOCAL -> result[i] != NOTHING; r = result[i]
		:: d_step { state[i] == WAITING -> state[i] = ABANDONED } -> goto fallback
		fi;
		if
#ifdef AGAIN
		:: r == VOIDED && i == 0 -> r = NOTHING; i = 1; goto again /* one new attempt */
#endif
		:: else -> goto tell
		fi;
fallback:	i = FALLBACK(c);
		local_transaction(i, r);
tell:		told[c] = (r == VOIDED -> ROLLEDBACK : r)
	} unless { dead[c] };
over:	skip
}

/* Kills a process at any step; what it had open is then over, one way or the other. */
proctype Crash() {
end:	do
	:: d_step { crashes > 0 && !dead[0] -> crashes--; dead[0] = true }
#if CALLERS > 1
	:: d_step { crashes > 0 && !dead[1] -> crashes--; dead[1] = true }
#endif
	od
}

/* The database ends transactions that nobody waits for: a COMMIT that was on its way, or a session that is gone. */
#define GONE(i) (HAS(open, i) && (HAS(orphan, i) || dead[OWNER(i)]))
#define SESSION(i) \
	:: d_step { GONE(i) -> commit(i) } \
	:: d_step { GONE(i) -> open = open & ~BIT(i); orphan = orphan & ~BIT(i) }

proctype Database() {
end:	do
	SESSION(0)
	SESSION(3)
#ifdef AGAIN
	SESSION(1)
#endif
#ifdef KEYED
	SESSION(4)
#ifdef TWO_HALVES
	SESSION(2)
#endif
#endif
	od
}

inline ended(k) {
	if
	:: copy[i] == k && live[i] -> live[i] = false; had = true
	:: else                                                    /* the newer copy is checked on */
	fi
}

/* One half message at the broker. It keeps no memory of verdicts: whatever COMMIT arrives is carried out. */
inline verdicts(k) {
	if
	:: HAS(commits[i], k) ->
		if
		:: d_step { commits[i] = commits[i] & ~BIT(k); deliver(i); ended(k) }
		:: d_step { commits[i] = commits[i] & ~BIT(k) }                              /* lost */
		:: d_step { doubles > 0 -> doubles--; doubled = doubled | BIT(i); deliver(i); ended(k) } /* and comes again */
		fi
	:: HAS(rollbacks[i], k) ->
		if
		:: d_step { rollbacks[i] = rollbacks[i] & ~BIT(k); ended(k) }
		:: d_step { rollbacks[i] = rollbacks[i] & ~BIT(k) }
		fi
	fi
}

proctype Broker(byte i) {
	byte other;
	bool had;      /* a verdict ended it */
end:	do
	:: atomic { HAS(commits[i], 0) || HAS(rollbacks[i], 0) -> verdicts(0) }
	:: atomic { HAS(commits[i], 1) || HAS(rollbacks[i], 1) -> verdicts(1) }
#if CHECKMAX > 1
	:: atomic { HAS(commits[i], 2) || HAS(rollbacks[i], 2) -> verdicts(2) }
#endif
	:: d_step { live[i] && copy[i] < CHECKMAX ->               /* a check: appended again, counted, asked */
		copy[i]++;
		if
		:: delivered[i] == 0 -> crossed = crossed | BIT(i)
		:: else
		fi;
		asks[i] = asks[i] | BIT(copy[i])
	   }
	:: d_step { live[i] && copy[i] == CHECKMAX -> live[i] = false; discarded = discarded | BIT(i); topic ! i }
	:: d_step { had && !live[i] && doubles > 0 && !HAS(discarded, i) -> /* its record of the verdict is lost */
		doubles--; doubled = doubled | BIT(i); had = false; live[i] = true
	   }
	od
}

#ifdef ERROR_IS_ROLLBACK
#define ON_ERROR ROLLEDBACK
#else
#define ON_ERROR UNKNOWN
#endif

/*
 * The decision, from the database alone, in steps between which anything may happen; young says whether the half
 * message may be spared. A row and a tombstone stay for ever, so looking again needs no step of its own.
 */
inline decide(i, young, v) {
	if                                                         /* by msg_id */
	:: d_step { errors > 0 -> errors--; v = ON_ERROR } -> goto decided
	:: d_step { HAS(tomb, i) -> v = ROLLEDBACK } -> goto decided
	:: d_step { HAS(committed, i) -> v = COMMITTED } -> goto decided
	:: !HAS(tomb, i) && !HAS(committed, i)
	fi;
#if defined(KEYED) && !defined(TXLOG)
	if                                                         /* by business key */
	:: d_step { HAS(committed, i) -> v = COMMITTED } -> goto decided
	:: d_step { committed != 0 && !HAS(committed, i) -> v = ROLLEDBACK } -> goto decided
	:: committed == 0
	fi;
#endif
	if                                                         /* neither */
	:: d_step { young -> v = UNKNOWN }
	:: d_step { errors > 0 -> errors--; v = ON_ERROR }
#ifdef NO_TOMBSTONE
	:: v = ROLLEDBACK
#else
	:: d_step { HAS(open, i) -> v = UNKNOWN }                  /* lock wait: the local transaction is still open */
	:: d_step { HAS(tomb, i) -> v = ROLLEDBACK }               /* the key is taken: look again */
	:: d_step { HAS(committed, i) -> v = COMMITTED }
	:: d_step { !HAS(open, i) && !HAS(tomb, i) && !HAS(committed, i) -> tomb = tomb | BIT(i); v = ROLLEDBACK }
#endif
	fi;
decided:
}

/* Instances that answer checks of half message i; what one of them does not live to answer is a lost message. */
proctype Checker(byte i) {
	byte k, v;
end:	do
	:: d_step { HAS(asks[i], 1) -> asks[i] = asks[i] & ~BIT(1) }       /* lost, or no producer is connected */
	:: d_step { HAS(asks[i], 1) -> asks[i] = asks[i] & ~BIT(1); k = 1 } -> goto ask
#if CHECKMAX > 1
	:: d_step { HAS(asks[i], 2) -> asks[i] = asks[i] & ~BIT(2) }
	:: d_step { HAS(asks[i], 2) -> asks[i] = asks[i] & ~BIT(2); k = 2 } -> goto ask
#endif
	od;
ask:	decide(i, true, v);
	d_step {
		if
		:: v == COMMITTED -> commits[i] = commits[i] | BIT(k)
		:: v == ROLLEDBACK -> rollbacks[i] = rollbacks[i] | BIT(k)
		:: v == UNKNOWN
		fi;
		v = NOTHING; k = 0
	};
	goto end
}

/* The rescue: in the topic's order, the position held while the answer is UNKNOWN, grace 0. */
proctype Rescue() {
	byte i, v;
end:	do
	:: topic ? <i> ->
		decide(i, false, v);
		if
		:: d_step { v == COMMITTED -> record = record | BIT(i); topic ? _; v = NOTHING }
		:: d_step { v == ROLLEDBACK -> topic ? _; v = NOTHING }
		:: v == UNKNOWN -> v = NOTHING; !HAS(open, i)          /* asked again; it changes when the transaction is over */
		fi;
		i = 0
	od
}

/* The outbox relay. */
proctype Relay() {
	byte i, other;
end:	do
	:: d_step { HAS(record & ~sent, 0) -> i = 0; sent = sent | BIT(0); deliver(i) }
	:: d_step { HAS(record & ~sent, 1) -> i = 1; sent = sent | BIT(1); deliver(i); i = 0 }
	:: d_step { HAS(record & ~sent, 2) -> i = 2; sent = sent | BIT(2); deliver(i); i = 0 }
	:: d_step { HAS(record & ~sent, 3) -> i = 3; sent = sent | BIT(3); deliver(i); i = 0 }
	:: d_step { HAS(record & ~sent, 4) -> i = 4; sent = sent | BIT(4); deliver(i); i = 0 }
	od
}

/* At rest, when nothing can happen any more. Every run comes to rest: everything that repeats has a bound. */
#define SETTLED(i) (!HAS(committed, i) || delivered[i] > 0)
#define LIED(c, a) (told[c] == ROLLEDBACK && (HAS(committed, FIRST(c)) || HAS(committed, FALLBACK(c)) || (c == 0 && HAS(committed, 1))))

proctype AtRest() {
	timeout;
	assert(SETTLED(0) && SETTLED(1) && SETTLED(2) && SETTLED(3) && SETTLED(4)); /* no committed order without a message */
	assert(!LIED(0, 0) && !LIED(1, 0));                        /* "rolled back" is true for ever */
	assert(!live[0] && !live[1] && !live[2]);                  /* no half message is left in doubt */
	assert(open == 0 && empty(topic));
	assert(dead[0] || told[0] != NOTHING);                     /* every caller that lives has its answer */
#ifdef KEYED
	assert(dead[1] || told[1] != NOTHING);
#endif
}

init {
	atomic {
		run Caller(0);
		run Broker(0); run Checker(0);
#ifdef TWO_CHECKERS
		run Checker(0);
#endif
#ifdef AGAIN
		run Broker(1); run Checker(1);
#endif
#ifdef KEYED
		run Caller(1);
#ifdef TWO_HALVES
		run Broker(2); run Checker(2);
#endif
#endif
#if CRASHES > 0
		run Crash();
#endif
		run Database(); run Rescue(); run Relay(); run AtRest()
	}
}
