// Package netfault makes faults on the wire. A Proxy stands between a client and a server and cuts, holds, drops or
// delays what passes; a Cluster does the same for RocketMQ, whose name servers' route answers it rewrites, so that
// clients reach the brokers through proxies too.
//
// Everything in this package is safe for concurrent use.
package netfault
