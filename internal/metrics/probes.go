package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shuntlb/shunt/internal/probe"
)

// ProbeFamilies are those of muxes and hosts that check backends. They are read from what the engine counts anyway: a probe costs
// nothing more for them.
var ProbeFamilies = []*Family{
	fam(Gauge, "shunt_probe_rules", perEngine, "Targets that are probed, each once however many backends it stands for, by the engine that asks them: packet, loop (sockets), worker (TLS, HTTP/2, gRPC, bodies), external.", "engine"),
	fam(Gauge, "shunt_probe_unaskable", one, "Targets that nothing on this node can ask, and that are not asked."),
	fam(Counter, "shunt_probes_asked_total", perEngine, "Probes made, by engine; one that an engine is unsure of is asked again by another.", "engine"),
	fam(Counter, "shunt_probes_total", "3", "Results of probes by verdict: good, bad, void (this machine could not ask, which says nothing of the server).", "verdict"),
	fam(Counter, "shunt_probes_late_total", one, "Probes that began more than an interval late, or were left out for being so: the machine has too little CPU for its checks."),
	fam(Counter, "shunt_probes_starved_total", one, "Probes for which the machine had no descriptor, port or memory left."),
	fam(Histogram, "shunt_probe_duration_seconds", "1, 22 lines", "Time of a good probe, from its beginning to its verdict."),
	fam(Histogram, "shunt_probe_start_delay_seconds", "1, 22 lines", "How late probes began."),
}

const perEngine = "one per engine, at most 4"

// collectProbes shows what the engine did; nothing without one.
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
	s.put("shunt_probes_starved_total", float64(stats.Starved))
	s.put("shunt_probes_total", float64(stats.Good), "good")
	s.put("shunt_probes_total", float64(stats.Bad), "bad")
	s.put("shunt_probes_total", float64(stats.Void), "void")
	s.put("shunt_probes_late_total", float64(stats.Late))
	s.histogram("shunt_probe_duration_seconds", &stats.Took)
	s.histogram("shunt_probe_start_delay_seconds", &stats.Start)
}

// histogram adds a family of one histogram.
func (s sink) histogram(name string, h *probe.Histogram) {
	var count uint64
	buckets := make(map[float64]uint64, len(probe.Bounds))
	for i, n := range h.Counts {
		if count += n; i < len(probe.Bounds) {
			buckets[probe.Bounds[i].Seconds()] = count
		}
	}
	f := s.families[name]
	m, err := prometheus.NewConstHistogram(f.desc, count, h.Sum.Seconds(), buckets)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	s.out <- m
}
