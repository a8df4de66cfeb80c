package dataplane

// idleCounts count endpoints by what they make of the word mux_config.idle.
type idleCounts map[uint64]int

// idleWord is what an endpoint makes of mux_config.idle.
func (t *muxTables) idleWord(e MuxEndpoint) uint64 {
	clients := t.ticks(e.SourceFor)
	return uint64(max(t.ticks(e.Idle.Untrusted), clients))<<muxPolicyShiftPOLICY_UNTRUSTED_SHIFT |
		uint64(max(t.ticks(e.Idle.Trusted), clients))<<muxPolicyShiftPOLICY_TRUSTED_SHIFT
}

// longest is the word mux_config.idle: the longest idle times of all endpoints.
func (n idleCounts) longest() uint64 {
	var untrusted, trusted uint16
	for word := range n {
		untrusted = max(untrusted, uint16(word>>muxPolicyShiftPOLICY_UNTRUSTED_SHIFT))
		trusted = max(trusted, uint16(word>>muxPolicyShiftPOLICY_TRUSTED_SHIFT))
	}
	return uint64(untrusted)<<muxPolicyShiftPOLICY_UNTRUSTED_SHIFT | uint64(trusted)<<muxPolicyShiftPOLICY_TRUSTED_SHIFT
}

// count makes an entry count with a word; 0: no more.
func (n idleCounts) count(e *muxEntry, word uint64) {
	if e.idle == word {
		return
	}
	if e.idle != 0 {
		if n[e.idle]--; n[e.idle] == 0 {
			delete(n, e.idle)
		}
	}
	if e.idle = word; word != 0 {
		n[word]++
	}
}

// countIdle publishes the longest idle times once these endpoints are as wanted and others are gone.
func (c *change) countIdle(endpoints []MuxEndpoint) {
	t := c.t
	for i := range endpoints {
		t.idles.count(t.entries[endpoints[i].Key], t.idleWord(endpoints[i]))
	}
	for _, e := range c.leaving {
		t.idles.count(e, 0)
	}
	store(&t.mem.config.Idle, t.idles.longest())
}
