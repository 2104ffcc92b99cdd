package rocketmq

import "time"

// SetLookTimeout is how long a client that looks at its group may wait. It is called before Start.
func (c *Consumer) SetLookTimeout(d time.Duration) { c.look = d }

// InstanceName is the name of the nth client of the consumer.
func (c *Consumer) InstanceName(n int) string { return generation(c.name, n) }
