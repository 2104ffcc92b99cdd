// Package rocketmq is the glue around rocketmq-client-go: everything about the client that is not obvious is known
// here, and nothing else of the project has to know it.
//
//   - Instance names. Clients of one process that share a name share one connection object, and the first creator
//     swallows the callbacks of the others. InstanceName makes a new one for every object.
//   - Name server addresses. The client takes an IP address or a URL; NameServers accepts what people write.
//   - Process-wide settings. The client's logger and its dial timeout are globals; Configure sets them once.
//   - Shutdown. The push consumer can panic when it is shut down under load; Consumer suspends, drains and only
//     then shuts down (apache/rocketmq-client-go#1051).
package rocketmq
