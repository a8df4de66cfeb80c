package metrics

import (
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/snat"
)

// snatFamilies hold the port leases of the leading manager; other managers show counters of their
// past terms and no VIPs.
var snatFamilies = []*Family{
	fam(Gauge, "shunt_snat_ranges", perVIP+", three states; of the leading manager", "Ranges of 8 ports for outbound connections by state: leased, free, resting (given back less than 2 minutes ago).", "service", "tenant", "vip", "state"),
	fam(Counter, "shunt_snat_asks_total", one, "Asks for ranges that this manager heard of hosts while it led."),
	fam(Counter, "shunt_snat_repeated_asks_total", one, "Asks of servers whose ask before was under way: they say nothing new."),
	fam(Counter, "shunt_snat_grants_total", one, "Asks that got ranges."),
	fam(Counter, "shunt_snat_ranges_granted_total", one, "Ranges that asks got."),
	fam(Counter, "shunt_snat_ranges_freed_total", one, "Ranges that were given back or taken."),
	fam(Counter, "shunt_snat_refused_total", "3", "Asks that were refused, by reason: exhausted (the VIP has no free range), dip_limit, tenant_limit.", "reason"),
	fam(Counter, "shunt_snat_mux_silences_total", one, "Times that a mux did not acknowledge leases within 20 ms: grants went on without it until it had everything again."),
	fam(Gauge, "shunt_snat_asks_waiting", "2", "Asks that wait now, for: turn (of their tenant), mux (stored, and not acknowledged by every mux).", "for"),
}

// snatSeconds is observed when hosts are granted ranges.
var snatSeconds = fam(Histogram, "shunt_snat_lease_seconds", "one per part, 3; 14 lines each", "Time of the parts of a lease at the leading manager: queue (from the ask until its turn), store (until it is stored), muxes (until every mux has it, and the host is told).", "part")

// SNATLeased observes the durations of the parts of a lease.
func (m *Manager) SNATLeased(queue, store, muxes time.Duration) {
	m.leases.WithLabelValues("queue").Observe(queue.Seconds())
	m.leases.WithLabelValues("store").Observe(store.Seconds())
	m.leases.WithLabelValues("muxes").Observe(muxes.Seconds())
}

// snat adds the series of leases.
func (s sink) snat(vips []*apiv1.SnatVIPStatus, c *apiv1.SnatCounts) {
	if len(vips) <= MaxEndpoints {
		for _, v := range vips {
			for _, state := range []struct {
				name  string
				ports uint32
			}{{"leased", v.GetLeased()}, {"free", v.GetFree()}, {"resting", v.GetResting()}} {
				s.put("shunt_snat_ranges", float64(state.ports/snat.RangePorts), v.GetService(), v.GetTenant(), v.GetVip(), state.name)
			}
		}
	}
	s.put("shunt_snat_asks_total", float64(c.GetAsks()))
	s.put("shunt_snat_repeated_asks_total", float64(c.GetRepeatedAsks()))
	s.put("shunt_snat_grants_total", float64(c.GetGrants()))
	s.put("shunt_snat_ranges_granted_total", float64(c.GetGranted()))
	s.put("shunt_snat_ranges_freed_total", float64(c.GetFreed()))
	for _, r := range c.GetRefused() {
		s.put("shunt_snat_refused_total", float64(r.GetCount()), r.GetReason())
	}
	s.put("shunt_snat_mux_silences_total", float64(c.GetSilent()))
	s.put("shunt_snat_asks_waiting", float64(c.GetQueued()), "turn")
	s.put("shunt_snat_asks_waiting", float64(c.GetTelling()), "mux")
}
