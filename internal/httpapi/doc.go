// Package httpapi is the HTTP side of the reference service: the public API of orders and points, and the
// operator's listener with probes, metrics and profiles.
//
//	client   --> Public   --> Orders (order.Service), Points (points.Ledger)
//	operator --> Operator --> checks, metrics, pprof, mounted routes
//
// # Guarantee
//
// A 201 or 200 answer to POST /api/v1/orders means that the order is committed. Every other answer except 503
// outcome-unknown, 500 and 499 means that this request changed nothing. A repetition with the same Idempotency-Key
// answers with the same order (200), also after an answer that said nothing certain. A cancel can be repeated as it is.
//
// Every answer that is not a success, 404 and 405 of the router included, is an RFC 9457 application/problem+json
// document with type, title, status, detail, instance and request_id, and where they help field and order_no.
// Only net/http itself answers otherwise, to bytes that are not a request (400, 431).
//
// # Failure handling
//
// One table, in failure.go, turns errors into problems:
//
//	what the domain or the decoder says                      status  type
//	broken or wrong input, *order.InvalidError               400     invalid-request
//	the operator's token is missing or wrong                 401     unauthorized
//	a browser sent it from another site (operator)           403     cross-origin
//	order.ErrNotFound, no such path                          404     not-found
//	a path that exists, another method                       405     method-not-allowed
//	a body over 64 KiB                                       413     body-too-large
//	a body that is not plain application/json                415     unsupported-media-type
//	order.ErrKeyReused                                       422     idempotency-key-reused
//	the client went away before the end                      499     request-canceled
//	*order.UnknownError, halfbox.ErrUnknown                  503     outcome-unknown, Retry-After
//	halfbox.ErrUnavailable, a deadline, a lock conflict      503     unavailable, Retry-After
//	more than MaxInFlight orders at once                     503     overloaded, Retry-After
//	outbox.ErrBacklog                                        503     overloaded, Retry-After
//	a panic, every other error                               500     internal
//
// An invalid value is a 400 like broken JSON; 422 is kept for a reused key alone. The text of an error that is not
// in the table is in the log only, under the request_id that the answer carries. Nothing that the client did is
// logged as an error.
//
// # Bounds
//
// A body has at most 64 KiB, a header 32 KiB, a request its RequestTimeout, and at most MaxInFlight orders are made
// at the same time. A slow sender occupies none of these places: they are taken when its body has been read.
//
// Handlers are safe for concurrent use. Metrics belong to the instance that was given the Registerer.
package httpapi
