package main

import (
	"fmt"
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
)

// limitsText returns the limits of each VIP of a service as text.
func limitsText(l lb.Limits) string {
	var out []string
	if l.Packets > 0 {
		out = append(out, fmt.Sprintf("%d packets", l.Packets))
	}
	if l.Connections > 0 {
		out = append(out, fmt.Sprintf("%d new flows", l.Connections))
	}
	return strings.Join(append(out, fmt.Sprintf("%d pings", l.Ping)), ", ") + " a second, per VIP and mux"
}

// options writes an endpoint's options other than its path.
func (d *description) options(e *lb.Endpoint) {
	flows := []string{"fragments " + e.Fragments}
	if e.OnePacket {
		flows = append(flows, "every packet by itself")
	}
	if e.KeepsFlows() {
		flows = append(flows, fmt.Sprintf("forgotten after %s, once trusted %s", e.Idle.Untrusted, e.Idle.Trusted))
	}
	if s := e.Source; s != nil {
		text := fmt.Sprintf("together by client /%d and /%d", s.Prefix4, s.Prefix6)
		if s.For > 0 {
			text += fmt.Sprintf(" for %s", s.For)
		}
		flows = append(flows, text)
	}
	if e.Encap != "" {
		flows = append(flows, "tunnel "+e.Encap)
	}
	d.printf("  flows: %s\n", strings.Join(flows, ", "))
	if said := e.HostIdle.String(); said != "" {
		d.printf("  hosts forget flows after: %s\n", said)
	}
	if said := e.Load.String(); said != "" {
		d.printf("  load: %s\n", said)
	}
	var backends []string
	for i := range e.Backends {
		if e.Backends[i].Backup {
			backends = append(backends, fmt.Sprintf("backups below %d %% healthy", e.BackupBelow))
			break
		}
	}
	if e.FailOpen {
		backends = append(backends, "all when none is healthy")
	}
	if e.KeepsDead() {
		backends = append(backends, "keep their flows while unhealthy")
	}
	if e.SlowStart > 0 {
		backends = append(backends, fmt.Sprintf("grow for %s", e.SlowStart))
	}
	if e.DrainTimeout > 0 {
		backends = append(backends, fmt.Sprintf("drain for at most %s", e.DrainTimeout))
	}
	if len(backends) > 0 {
		d.printf("  backends: %s\n", strings.Join(backends, ", "))
	}
}
