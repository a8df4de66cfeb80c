package main

import (
	"fmt"
	"strings"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// slowScale is the factor by which ring weights are larger while a member of the endpoint is in
// slow start.
const slowScale = 10

// decisions holds the manager's decisions on members.
type decisions struct {
	members map[string]decision
	// growing holds the endpoints with a member in slow start.
	growing map[endpointKey]bool
}

// decision is the manager's decision on a member. It is empty for a member in normal service.
type decision struct{ *apiv1.MemberDecision }

func decisionsOf(status *apiv1.StatusResponse) decisions {
	d := decisions{map[string]decision{}, map[endpointKey]bool{}}
	for _, m := range status.GetDecisions() {
		key := endpointKey{m.GetService(), m.GetVip(), m.GetProtocol(), m.GetPort(), m.GetPortEnd()}
		d.members[backendKey(key, m.GetDip(), m.GetDipPort())] = decision{m}
		d.growing[key] = d.growing[key] || m.GetWarming() != nil
	}
	return d
}

func (d decisions) of(m *apiv1.MemberStatus) decision { return d.members[memberKey(m)] }

// served reports whether an agent receives the member's packets.
func (d decisions) served(m *apiv1.MemberStatus) bool { return d.of(m).GetNoAgent() == "" }

// weight returns the member's effective weight.
func (d decisions) weight(m *apiv1.MemberStatus) float64 {
	if d.growing[keyOf(m)] {
		return float64(m.GetWeight()) / slowScale
	}
	return float64(m.GetWeight())
}

// words returns the decision as text: "draining since 2026-01-02T03:04:05Z until
// 2026-01-02T03:14:05Z".
func (d decision) words() string {
	var out []string
	if d.GetNoAgent() != "" {
		out = append(out, d.GetNoAgent())
	}
	if d.GetBackup() {
		out = append(out, "backup")
	}
	if d.GetDown() {
		out = append(out, "down")
	}
	if d.GetWarming() != nil {
		out = append(out, fmt.Sprintf("growing until %s", d.GetWarm().AsTime().Format(time.RFC3339)))
	}
	if d.GetDraining() != nil {
		text := "draining since " + d.GetDraining().AsTime().Format(time.RFC3339)
		if d.GetDrained() != nil {
			text += " until " + d.GetDrained().AsTime().Format(time.RFC3339)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}
