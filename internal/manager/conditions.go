package manager

import (
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// conditions holds the inputs of an endpoint's next state, in addition to the objects.
type conditions struct {
	size      plan.SizeCode
	now       time.Time
	downAfter time.Duration
	// heard returns the health that muxes report for an endpoint's members; nil if there are no
	// reports.
	heard func(lb.EndpointKey) func(id uint16) plan.Heard
	// noHandshakes returns why a node cannot offload TCP handshakes, or "" if it did not report so;
	// nil if no node did.
	noHandshakes func(node string) string
	// room returns the smallest capacity of each table over all muxes; nil if none reported it.
	room func() map[string]tableRoom
	// muxes returns the reported tables of connected muxes, hosts those of a connected host; nil if
	// none were reported.
	muxes func() map[string]map[string]tableUse
	hosts func(node string) map[string]tableUse
	// snatRoom returns how many VIPs with SNAT muxes have room for; nil if none reported it.
	snatRoom func() map[string]int
	// managers returns the names of managers by address; nil if there are none.
	managers func() map[netip.Addr]string
}

func (m *Manager) conditions() conditions {
	// The store keeps neither monotonic time nor zone.
	return conditions{size: m.o.RingSize, now: m.o.Clock.Now().Round(0).UTC(), downAfter: m.downAfter(), heard: m.opinions.heard,
		noHandshakes: m.reports.noHandshakes, room: m.reports.room, muxes: m.reports.muxTables, hosts: m.reports.hostTables, snatRoom: m.reports.snatRoom,
		managers: m.managerAddrs}
}

func (m *Manager) downAfter() time.Duration { return max(0, m.o.DownAfter) }

// input returns the inputs of the state of an endpoint. ep is nil if no service owns the endpoint
// any more.
func (c conditions) input(key lb.EndpointKey, ep *lb.Endpoint, keyID uint32) plan.Input {
	in := plan.Input{KeyID: keyID, Size: c.size, DownAfter: c.downAfter, Now: c.now}
	if ep != nil {
		in.Wanted, in.SlowStart, in.DrainTimeout = plan.WantedMembers(ep, key.VIP), ep.SlowStart, ep.DrainTimeout
		in.MaxIDs, in.Cookies, in.Idle = ep.MaxMembers(), ep.Cookies(), ep.Idle.Trusted
		if !ep.Translated() {
			in.Form, in.QUIC = ep.Cookie.Form, ep.QUIC
		}
		if in.RepairWindow = ep.Repairs(); in.RepairWindow > 0 {
			in.Hosts = plan.HostsOf(ep, key.VIP)
			in.Revives = ep.Affinity == lb.AffinityHash
		}
	}
	if c.heard != nil {
		in.Heard = c.heard(key)
	}
	return in
}
