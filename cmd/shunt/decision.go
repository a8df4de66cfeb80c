package main

import (
	"fmt"
	"strings"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// slowScale is by what weights in rings are larger while a member of the endpoint grows.
const slowScale = 10

// decisions are what the manager decided of members.
type decisions struct {
	members map[string]decision
	// growing are endpoints with a member that grows.
	growing map[endpointKey]bool
}

// decision is what the manager decided of a member; it is empty for one in plain service.
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

// served reports whether an agent takes the member's packets.
func (d decisions) served(m *apiv1.MemberStatus) bool { return d.of(m).GetNoAgent() == "" }

// weight is the member's weight in effect.
func (d decisions) weight(m *apiv1.MemberStatus) float64 {
	if d.growing[keyOf(m)] {
		return float64(m.GetWeight()) / slowScale
	}
	return float64(m.GetWeight())
}

// words tell the decision: "draining since 2026-01-02T03:04:05Z until 2026-01-02T03:14:05Z".
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
