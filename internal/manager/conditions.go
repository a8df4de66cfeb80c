package manager

import (
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// conditions are what an endpoint's next state depends on, beside the objects.
type conditions struct {
	size      plan.SizeCode
	now       time.Time
	downAfter time.Duration
	// heard returns what muxes say of an endpoint's members; nil: nothing.
	heard func(lb.EndpointKey) func(id uint16) plan.Heard
	// noHandshakes tells why a node cannot make TCP handshakes, "" when it did not say so; nil: nobody did.
	noHandshakes func(node string) string
	// room returns the least capacity of each table of muxes; nil: none reported it.
	room func() map[string]tableRoom
	// muxes returns the tables of connected muxes, hosts those of a connected host, as they reported them; nil: none did.
	muxes func() map[string]map[string]tableUse
	hosts func(node string) map[string]tableUse
	// snatRoom tells how many VIPs with SNAT muxes have room for; nil: none reported it.
	snatRoom func() map[string]int
	// managers returns the addresses of managers, with their names; nil: there are none.
	managers func() map[netip.Addr]string
}

func (m *Manager) conditions() conditions {
	// The store keeps no monotonic time, and no zone.
	return conditions{size: m.o.RingSize, now: m.o.Clock.Now().Round(0).UTC(), downAfter: m.downAfter(), heard: m.opinions.heard,
		noHandshakes: m.reports.noHandshakes, room: m.reports.room, muxes: m.reports.muxTables, hosts: m.reports.hostTables, snatRoom: m.reports.snatRoom,
		managers: m.managerAddrs}
}

func (m *Manager) downAfter() time.Duration { return max(0, m.o.DownAfter) }

// input is what the state of an endpoint is made of; ep is nil when nobody owns it any more.
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
