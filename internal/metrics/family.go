// Package metrics exposes the state of Shunt's components to Prometheus. It is the only importer of
// Prometheus's client. The components do not depend on it: a scrape reads the data that they report
// anyway.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Type is the type of a family, as named in the exposition format.
type Type string

// The types in use.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Family is a metric with all its series. docs/ops/metrics.md is generated from it.
type Family struct {
	Name   string
	Type   Type
	Labels []string
	// Help describes the value, and when it is counted or measured.
	Help string
	// Series describes the maximum number of series.
	Series string
	desc   *prometheus.Desc
}

// Labels in their fixed order.
var (
	endpointLabels = []string{"service", "vip", "protocol", "port"}
	backendLabels  = []string{"service", "vip", "protocol", "port", "backend"}
	serverLabels   = []string{"dip", "direction"}
)

// nodeLabel is on every series of Shunt: the node's or the manager's name.
const nodeLabel = "node"

// Bounds on the number of series of a node. Beyond them a family is left out as a whole and
// shunt_metrics_omitted reports that: 10,000 backends are 70,000 series of about 200 bytes, 14 MB a
// scrape.
const (
	MaxBackends  = 10_000
	MaxEndpoints = 20_000
)

// Texts for Family.Series.
const (
	one         = "1"
	perReason   = "one per reason, at most 80"
	perEndpoint = "one per endpoint and VIP; none at all beyond 20,000"
	perBackend  = "one per backend, endpoint and VIP; none at all beyond 10,000"
	perServer   = "two per server, at most 8,191 servers; none at all beyond 10,000 backends"
	perTable    = "one per table, at most 16"
	perVIP      = "one per VIP; none at all beyond 20,000"
	perPeer     = "one per BGP peer"
)

// fam returns a family; its description is complete after described was called with the node's
// name.
func fam(t Type, name, series, help string, labels ...string) *Family {
	return &Family{Name: name, Type: t, Labels: labels, Help: help, Series: series}
}

// described copies families with the descriptions of one node.
func described(all []*Family, node string) map[string]*Family {
	out := make(map[string]*Family, len(all))
	for _, f := range all {
		c := *f
		c.desc = prometheus.NewDesc(f.Name, f.Help, f.Labels, prometheus.Labels{nodeLabel: node})
		out[f.Name] = &c
	}
	return out
}

// sink is one scrape.
type sink struct {
	families map[string]*Family
	out      chan<- prometheus.Metric
}

// put adds a series. The family must be in the set and have as many labels as there are values.
func (s sink) put(name string, value float64, labels ...string) {
	f := s.families[name]
	kind := prometheus.GaugeValue
	if f.Type == Counter {
		kind = prometheus.CounterValue
	}
	m, err := prometheus.NewConstMetric(f.desc, kind, value, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	s.out <- m
}

// flag adds a series that is 0 or 1.
func (s sink) flag(name string, on bool, labels ...string) {
	value := 0.0
	if on {
		value = 1
	}
	s.put(name, value, labels...)
}
