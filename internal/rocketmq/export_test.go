package rocketmq

// InstanceName is the name of the nth client of the consumer.
func (c *Consumer) InstanceName(n int) string { return generation(c.name, n) }
