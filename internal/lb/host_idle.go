package lb

import (
	"strings"
	"time"
)

// HostIdle is how long the host keeps a flow without packets, by the state of the flow. A zero
// field is not set: see Or.
type HostIdle struct {
	// Established is for TCP flows that both ends have confirmed, Opening for TCP before that,
	// Closing for TCP after a RST or a FIN each way.
	Established, Opening, Closing time.Duration
	// UDP is for UDP, Other for protocols without ports.
	UDP, Other time.Duration
}

// hostIdleClass is a field of HostIdle and its name in the API.
type hostIdleClass struct {
	name string
	time *time.Duration
}

// classes returns the fields of h in the order in which they are written.
func (h *HostIdle) classes() [5]hostIdleClass {
	return [...]hostIdleClass{
		{"established", &h.Established}, {"opening", &h.Opening}, {"closing", &h.Closing}, {"udp", &h.UDP}, {"other", &h.Other},
	}
}

// String returns the times that are set, as in "established 2h4m, udp 2m"; empty: none.
func (h HostIdle) String() string {
	var out []string
	for _, c := range h.classes() {
		if *c.time != 0 {
			out = append(out, c.name+" "+durationText(*c.time))
		}
	}
	return strings.Join(out, ", ")
}

// DefaultHostIdle has the defaults: RFC 5382 section 5 (REQ-5) for TCP, RFC 4787 section 4.3 for
// UDP. Opening is shorter than its 4 minutes, because a flow becomes established as soon as both
// ends have confirmed it.
var DefaultHostIdle = HostIdle{
	Established: 2*time.Hour + 4*time.Minute, Opening: 60 * time.Second, Closing: 4 * time.Minute, UDP: 2 * time.Minute, Other: 10 * time.Minute,
}

// MaxHostIdle is the upper bound of the times of HostIdle; MinIdle is the lower bound.
const (
	MaxHostIdle     = 18 * time.Hour
	allowedHostIdle = "must be 1s to 18h"
)

// Or returns h with unset times taken from d.
func (h HostIdle) Or(d HostIdle) HostIdle {
	setDefault(&h.Established, d.Established)
	setDefault(&h.Opening, d.Opening)
	setDefault(&h.Closing, d.Closing)
	setDefault(&h.UDP, d.UDP)
	setDefault(&h.Other, d.Other)
	return h
}

// Of returns the times that apply to endpoints of a protocol: those of TCP, of UDP, or all.
func (h HostIdle) Of(p Protocol) HostIdle {
	switch p {
	case TCP:
		h.UDP, h.Other = 0, 0
	case UDP:
		h = HostIdle{UDP: h.UDP}
	}
	return h
}

// hostIdle checks how long hosts keep the endpoint's flows.
func (f *faults) hostIdle(path string, e *Endpoint) {
	h := e.HostIdle
	if h == (HostIdle{}) {
		return
	}
	if e.Rewrite == RewriteNone {
		f.add(path, "", "must be left out with rewrite none: hosts remember no flow")
		return
	}
	of := h.Of(e.Protocol)
	for i, c := range h.classes() {
		switch at := path + "." + c.name; {
		case *c.time == 0:
		case *of.classes()[i].time == 0:
			f.add(at, durationText(*c.time), "must be left out: the endpoint's protocol is "+e.Protocol.String())
		case *c.time < MinIdle || *c.time > MaxHostIdle:
			f.add(at, durationText(*c.time), allowedHostIdle)
		}
	}
	if all := h.Or(DefaultHostIdle); h.Opening != 0 && all.Opening > all.Established && !f.hasUnder(path) {
		f.add(path+".opening", durationText(h.Opening), "must be at most established, "+durationText(all.Established))
	}
}
