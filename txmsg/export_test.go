package txmsg

// Instance is the name that the client's id ends in.
func (p *Producer) Instance() string { return p.instance }

// UnderWay tells whether an attempt's half message is on its way or its local transaction runs.
func (p *Producer) UnderWay(msgID string) bool {
	_, ok := p.attempts.Load(msgID)
	return ok
}

// Attempts counts the attempts that are under way.
func (p *Producer) Attempts() (n int) {
	p.attempts.Range(func(any, any) bool { n++; return true })
	return n
}
