// Package rig makes the places in which package compare runs a strategy: schemas, a topic and groups that nothing else
// has, proxies on the wires, and the service itself as a process that can be killed. It implements compare.Engines on
// the embedded engines and on MySQL with a RocketMQ cluster. What it makes it removes; what the configuration names it
// never touches.
//
//	parent  rig.Engines -> site -> process ==stdin: configuration, then commands==> child  rig.Serve -> app.App
//	                                       <==stdout: ready, counters=============
//
// The child ends when its standard input does, so that it never outlives its parent.
package rig
