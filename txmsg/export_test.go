package txmsg

// Instance is the name that the client's id ends in.
func (p *Producer) Instance() string { return p.instance }

// Attempts counts the attempts that are under way.
func (p *Producer) Attempts() (n int) {
	p.attempts.Range(func(any, any) bool { n++; return true })
	return n
}
