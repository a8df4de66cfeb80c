package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// byMux is the value of --by that selects a row for each mux.
const byMux = "mux"

// backendsView has one row per backend of a port of a service, summed over VIPs and muxes. Its
// records are those of backendView.
func backendsView(status *apiv1.StatusResponse, service string) view {
	rows := [][]string{{"SERVICE", "PORT", "BACKEND", "HEALTH", "WEIGHT", "FLOWS", "STATE", "PACKETS", "BYTES", "BY", "LAST-CHECK"}}
	decided, all := decisionsOf(status), reports(status, service)
	slices.SortStableFunc(all, func(a, b memberReport) int {
		return cmp.Or(
			cmp.Compare(a.GetService(), b.GetService()), cmp.Compare(a.GetProtocol(), b.GetProtocol()), cmp.Compare(a.GetPort(), b.GetPort()),
			cmp.Compare(a.GetPortEnd(), b.GetPortEnd()), cmp.Compare(a.GetMember(), b.GetMember()), cmp.Compare(a.GetDip(), b.GetDip()), cmp.Compare(a.GetDipPort(), b.GetDipPort()),
		)
	})
	for len(all) > 0 {
		end := slices.IndexFunc(all, func(m memberReport) bool { return !sameBackend(m.MemberStatus, all[0].MemberStatus) })
		if end < 0 {
			end = len(all)
		}
		rows = append(rows, backendRow(all[:end], decided))
		all = all[end:]
	}
	return view{rows, backendView(status, service).records}
}

// sameBackend reports whether both are reports of one backend of one port of a service.
func sameBackend(a, b *apiv1.MemberStatus) bool {
	return a.GetService() == b.GetService() && a.GetProtocol() == b.GetProtocol() && a.GetPort() == b.GetPort() && a.GetPortEnd() == b.GetPortEnd() &&
		a.GetDip() == b.GetDip() && a.GetDipPort() == b.GetDipPort()
}

// backendRow aggregates the muxes' reports of one backend, at least one. The verdict is unknown
// only if every mux reports unknown.
func backendRow(of []memberReport, decided decisions) []string {
	var health, weights, states, words []string
	var flows, packets, bytes uint64
	muxes, last := map[string][]string{}, ""
	add := func(to *[]string, text string) {
		if text != "" && !slices.Contains(*to, text) {
			*to = append(*to, text)
		}
	}
	for _, m := range of {
		word, mux := decided.health(m), m.node.GetName()
		add(&words, word)
		if !slices.Contains(muxes[word], mux) {
			muxes[word] = append(muxes[word], mux)
		}
		if word != convert.Unknown {
			add(&health, word)
		}
		add(&weights, fmt.Sprint(decided.weight(m.MemberStatus)))
		add(&states, decided.of(m.MemberStatus).words())
		flows, packets, bytes = flows+m.GetFlows(), packets+m.GetPackets(), bytes+m.GetBytes()
	}
	verdict := cmp.Or(strings.Join(health, ","), convert.Unknown)
	if len(health) > 1 {
		verdict = convert.Mixed
	}
	// If muxes differ, prefer the check result of a mux that reports the backend down.
	for _, m := range of {
		if word := decided.health(m); last == "" && word == verdict || verdict == convert.Mixed && word == "down" {
			last = m.GetLastCheck()
		}
	}
	by := make([]string, len(words))
	for i, word := range words {
		if by[i] = strings.Join(muxes[word], ","); len(words) > 1 {
			by[i] += " " + word
		}
	}
	m := of[0]
	return []string{
		m.GetService(), m.GetProtocol() + "/" + lb.PortsText(uint16(m.GetPort()), uint16(m.GetPortEnd())), backendText(m.GetDip(), m.GetDipPort()), verdict,
		strings.Join(weights, ","), fmt.Sprint(flows), strings.Join(states, ","), fmt.Sprint(packets), fmt.Sprint(bytes), strings.Join(by, "; "), last,
	}
}
