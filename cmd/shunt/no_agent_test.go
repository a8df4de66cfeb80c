package main

import (
	"bytes"
	"strings"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestNoAgentIsNotHealthy checks that every view reports a backend that passes its checks but has
// no host agent.
func TestNoAgentIsNotHealthy(t *testing.T) {
	const why = "no agent at 10.20.1.1: no Node of role host has the address"
	member := func(id uint32, dip string) *apiv1.MemberStatus {
		return &apiv1.MemberStatus{Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: dip, DipPort: 8080, Member: id, Alive: true, LastCheck: "connected"}
	}
	status := &apiv1.StatusResponse{
		Nodes:     []*apiv1.NodeStatus{{Name: "mux1", Role: string(lb.RoleMux), Connected: true, Members: []*apiv1.MemberStatus{member(1, "10.20.1.11"), member(2, "10.20.2.11")}}},
		Decisions: []*apiv1.MemberDecision{{Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.1.11", DipPort: 8080, Member: 1, Share: 100, NoAgent: why}},
	}
	if n := healthyMembers(status)["web"]; n != 1 {
		t.Errorf("healthy members of the service: %d, want 1", n)
	}
	if e := endpointView(status, "web").records.([]endpointRecord); e[0].Healthy != 1 || e[0].Members != 2 {
		t.Errorf("endpoint: %+v, want 1 of 2 healthy", e[0])
	}
	if b := backendView(status, "web").records.([]backendRecord); b[0].Health != "no-agent" || b[0].State != why || b[1].Health != "up" || b[1].State != "" {
		t.Errorf("backends: %+v", b)
	}
	if h := healthRecords(status, nil); h[0].Verdict != "no-agent" || h[0].LastCheck != why || h[1].Verdict != "healthy" {
		t.Errorf("health: %+v", h)
	}
	var out bytes.Buffer
	g := &globals{format: formatTable}
	if err := g.printTrace(&out, []*apiv1.TraceResult{{Node: "mux1", Verdict: "forwarded", Service: "web", Steps: []string{"endpoint web", why}, NoAgent: why}}); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "forwarded, no-agent") || !strings.HasSuffix(text, "  "+why+"\n") {
		t.Errorf("trace:\n%s", text)
	}
}

// TestWarningsOfApply checks that warnings are separate from the changes in table output, and in
// the same message in the other formats.
func TestWarningsOfApply(t *testing.T) {
	res := &apiv1.ApplyResponse{Revision: 3, Warnings: []string{"services/web: no agent"}}
	for format, want := range map[format][2]string{
		formatTable: {"", "warning: services/web: no agent\n"},
		formatJSON:  {"\"warnings\": [\n    \"services/web: no agent\"\n  ]", ""},
	} {
		var out, warned bytes.Buffer
		g := &globals{format: format}
		g.warn(&warned, res.GetWarnings())
		if err := g.printApplied(&out, res, true); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want[0]) || warned.String() != want[1] {
			t.Errorf("%s: %q and %q, want %q", format, out.String(), warned.String(), want)
		}
	}
}
