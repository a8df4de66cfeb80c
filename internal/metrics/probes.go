package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shuntlb/shunt/internal/probe"
)

// ProbeFamilies are for muxes and hosts that check backends. They are read from the engine's
// existing counters, so they do not add cost to a probe.
var ProbeFamilies = []*Family{
	fam(Gauge, "shunt_probe_rules", perEngine, "Targets that are probed, each once however many backends it stands for, by the engine that asks them: packet, loop (sockets), worker (TLS, HTTP/2, gRPC, bodies), external.", "engine"),
	fam(Gauge, "shunt_probe_unaskable", one, "Targets that nothing on this node can ask, and that are not asked."),
	fam(Gauge, "shunt_probe_crowded", one, "Targets that the tables of probes by packets have no room for (--max-probes): sockets ask them, or nobody."),
	fam(Gauge, "shunt_probe_direct", one, "Targets of checks through the tunnel that sockets ask directly, because packets cannot or have no room: that the tunnel leads there is not proven."),
	fam(Counter, "shunt_probes_asked_total", perEngine, "Probes made, by engine; one that an engine is unsure of is asked again by another.", "engine"),
	fam(Counter, "shunt_probes_total", "3 per kind that was asked, at most 27", "Results of probes by the kind of their check as it is written in services (tcp, http, https, icmp, grpc, udp, dns, external) and by verdict: good, bad, void (this machine could not ask, which says nothing of the server).", "kind", "verdict"),
	fam(Counter, "shunt_probes_late_total", one, "Probes that began more than an interval late, or were left out for being so: the machine has too little CPU for its checks."),
	fam(Counter, "shunt_probes_starved_total", one, "Probes for which the machine had no descriptor, port or memory left, or no room for more that wait for silent servers."),
	fam(Counter, "shunt_probe_connections_again_total", one, "Connections tried by sockets beside one of the same probe that was not made yet, whose SYN may be lost: many of them tell of loss on the way to servers."),
	fam(Counter, "shunt_probe_unproven_total", one, "Answers and errors by ICMP that did not show the secret of what was asked, and were not believed: somebody forges them, or a router quotes too little."),
	fam(Gauge, "shunt_probe_programs_stuck", one, "Programs of external checks that were killed when their time was over, and have not ended; at 32 no other one begins."),
	fam(Histogram, "shunt_probe_duration_seconds", "one per kind that was asked, at most 9, 22 lines each", "Time of a good probe, from its beginning to its verdict, by the kind of its check.", "kind"),
	fam(Histogram, "shunt_probe_start_delay_seconds", "1, 22 lines", "How late probes began."),
}

const perEngine = "one per engine, at most 4"

// collectProbes collects the statistics of the engine; none without one.
func (c nodeCollector) collectProbes(s sink) {
	if c.Probes == nil {
		return
	}
	stats := c.Probes()
	for _, m := range stats.Means {
		s.put("shunt_probe_rules", float64(m.Targets), m.Name)
		s.put("shunt_probes_asked_total", float64(m.Asked), m.Name)
	}
	s.put("shunt_probe_unaskable", float64(stats.Unaskable))
	s.put("shunt_probe_crowded", float64(stats.Crowded))
	s.put("shunt_probe_direct", float64(stats.Direct))
	s.put("shunt_probes_starved_total", float64(stats.Starved))
	s.put("shunt_probe_connections_again_total", float64(stats.Again))
	s.put("shunt_probe_unproven_total", float64(stats.Unproven))
	s.put("shunt_probe_programs_stuck", float64(stats.Stuck))
	for i := range stats.Kinds {
		k := &stats.Kinds[i]
		if k.Good+k.Bad+k.Void == 0 {
			continue
		}
		s.put("shunt_probes_total", float64(k.Good), k.Name, "good")
		s.put("shunt_probes_total", float64(k.Bad), k.Name, "bad")
		s.put("shunt_probes_total", float64(k.Void), k.Name, "void")
		s.histogram("shunt_probe_duration_seconds", &k.Took, k.Name)
	}
	s.put("shunt_probes_late_total", float64(stats.Late))
	s.histogram("shunt_probe_start_delay_seconds", &stats.Start)
}

// histogram adds a histogram to its family.
func (s sink) histogram(name string, h *probe.Histogram, labels ...string) {
	var count uint64
	buckets := make(map[float64]uint64, len(probe.Bounds))
	for i, n := range h.Counts {
		if count += n; i < len(probe.Bounds) {
			buckets[probe.Bounds[i].Seconds()] = count
		}
	}
	f := s.families[name]
	m, err := prometheus.NewConstHistogram(f.desc, count, h.Sum.Seconds(), buckets, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	s.out <- m
}
