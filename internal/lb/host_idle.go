package lb

import "time"

// HostIdle is how long the host keeps a flow without packets, by what the flow is. A zero field says nothing: see Or.
type HostIdle struct {
	// Established is for TCP whose client and server are known to be there, Opening for TCP before that, Closing for TCP after a RST or a FIN
	// each way.
	Established, Opening, Closing time.Duration
	// UDP is for UDP, Other for protocols without ports.
	UDP, Other time.Duration
}

// DefaultHostIdle is what an endpoint has that says nothing: RFC 5382 section 5 (REQ-5) for TCP, RFC 4787 section 4.3 for UDP. Opening is
// shorter than its 4 minutes: a server that answers makes a flow established at once.
var DefaultHostIdle = HostIdle{
	Established: 2*time.Hour + 4*time.Minute, Opening: 60 * time.Second, Closing: 4 * time.Minute, UDP: 2 * time.Minute, Other: 10 * time.Minute,
}

// MaxHostIdle bounds the times of HostIdle; MinIdle does from below.
const MaxHostIdle = 18 * time.Hour

// Or is these times, where they are not given those of d.
func (h HostIdle) Or(d HostIdle) HostIdle {
	setDefault(&h.Established, d.Established)
	setDefault(&h.Opening, d.Opening)
	setDefault(&h.Closing, d.Closing)
	setDefault(&h.UDP, d.UDP)
	setDefault(&h.Other, d.Other)
	return h
}

// Of is the part of these times that an endpoint of a protocol has: those of TCP, of UDP, or all.
func (h HostIdle) Of(p Protocol) HostIdle {
	switch p {
	case TCP:
		h.UDP, h.Other = 0, 0
	case UDP:
		h = HostIdle{UDP: h.UDP}
	}
	return h
}
