package dataplane

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// modelTrail is what one packet touched of the tables.
type modelTrail struct {
	counted    bool // by the endpoint: for `member`, or for none below 0
	endpoint   lb.EndpointKey
	member     int
	length     int
	buckets    []int            // of the flow table, looked at
	pinged     netip.Addr       // whose echo requests were counted
	first      modelFragmentKey // entered
	remembered bool             // there is such a fragment
}

// begin forgets the packet before.
func (t *modelTrail) begin() { *t = modelTrail{buckets: t.buckets[:0]} }

// count notes that the endpoint has to do with a packet, which went to no member so far.
func (t *modelTrail) count(e lb.EndpointKey, length int) {
	t.counted, t.endpoint, t.member, t.length = true, e, -1, length
}
