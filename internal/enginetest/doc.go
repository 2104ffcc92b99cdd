// Package enginetest gives tests real engines: MySQL and RocketMQ.
//
// # Where they come from
//
// MySQL and RocketMQ take the first that there is of
//
//  1. the addresses in HALFBOX_TEST_MYSQL_DSN and HALFBOX_TEST_ROCKETMQ, as eval "$(scripts/engines up)" sets them;
//  2. a Docker engine, in which a container of each is started once for all packages of a "go test";
//  3. nothing: the test is skipped with the reason, or fails when HALFBOX_TEST_ENGINES=real is set.
//
// # Sharing them
//
// All tests of a run share the servers, in parallel. What a test makes there is its own: MySQL returns a schema that
// no other test has, and Topic and Group return names that no other test has, in this run or any before it.
//
// A test that stops, kills or freezes an engine must have one of its own: OwnMySQL and OwnRocketMQ start servers with
// scripts/engines, in a run folder of their own, that end with the test.
//
// # Faults on the wire
//
// Proxy stands between a client and a server and cuts, holds, drops or delays what passes. RocketMQProxy does the same
// for a cluster: it rewrites the name server's route answers, so that clients reach the brokers through proxies too.
package enginetest
