// Package top computes rates from the reports of nodes: packets per second by service, backend,
// reason and node.
package top

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// Service holds the rates of a service over all muxes.
type Service struct {
	Service string  `json:"service"`
	PPS     float64 `json:"packetsPerSecond"`
	BPS     float64 `json:"bitsPerSecond"`
	// Refused is the number of packets per second that matched an endpoint and were not forwarded:
	// above limits, or from denied sources. PPS does not include them.
	Refused float64 `json:"refusedPerSecond"`
	Flows   uint64  `json:"flows"`
	// Backends is the number of its members over all endpoints and VIPs; Alive is the number that
	// every mux reports alive.
	Backends int `json:"backends"`
	Alive    int `json:"alive"`
}

// Backend holds the rates of a backend of a service over all its endpoints, VIPs and muxes.
type Backend struct {
	Service string  `json:"service"`
	Backend string  `json:"backend"`
	PPS     float64 `json:"packetsPerSecond"`
	BPS     float64 `json:"bitsPerSecond"`
	Flows   uint64  `json:"flows"`
	Weight  uint32  `json:"weight"`
	// Health is "up", "down", "draining", or "mixed" when muxes or endpoints differ.
	Health string `json:"health"`
}

// classDrop is the class of reasons of packets that were dropped.
const classDrop = "drop"

// Reason holds the rate of a reason over all nodes of a role.
type Reason struct {
	Role   string `json:"role"`
	Reason string `json:"reason"`
	// Class is the end of its packets: "drop", "pass", "tx", "consumed", "info".
	Class string  `json:"class"`
	PPS   float64 `json:"packetsPerSecond"`
	Total uint64  `json:"total"`
}

// Node holds the rates of a mux or host.
type Node struct {
	Node  string  `json:"node"`
	Role  string  `json:"role"`
	State string  `json:"state"`
	PPS   float64 `json:"packetsPerSecond"`
	BPS   float64 `json:"bitsPerSecond"`
	// Drops is the number of dropped packets per second.
	Drops float64 `json:"dropsPerSecond"`
	Flows uint64  `json:"flows"`
	// Revision is the one it applied.
	Revision int64 `json:"revision"`
}

// Rates holds all rates at one moment. Lists are ordered by packets per second, the busiest first;
// for services including refused packets.
type Rates struct {
	Services []Service `json:"services"`
	Backends []Backend `json:"backends"`
	Reasons  []Reason  `json:"reasons"`
	Nodes    []Node    `json:"nodes"`
}

// Between returns the rates between two responses. The time of each node is that between its two
// reports. A node without two reports has no rates, and a counter that decreased counts from 0.
func Between(before, now *apiv1.StatusResponse) Rates {
	old := map[string]*apiv1.NodeStatus{}
	for _, n := range before.GetNodes() {
		old[n.GetName()] = n
	}
	sum := sums{services: map[string]*Service{}, backends: map[[2]string]*Backend{}, reasons: map[[2]string]*Reason{}, members: map[string]map[member]bool{}}
	var out Rates
	for _, n := range now.GetNodes() {
		b := old[n.GetName()]
		seconds := 0.0
		if b.GetLastSeen() != nil && n.GetLastSeen() != nil {
			seconds = n.GetLastSeen().AsTime().Sub(b.GetLastSeen().AsTime()).Seconds()
		}
		out.Nodes = append(out.Nodes, sum.node(b, n, seconds))
	}
	out.Services, out.Backends, out.Reasons = values(sum.services), values(sum.backends), values(sum.reasons)
	for i := range out.Services {
		s := &out.Services[i]
		for _, alive := range sum.members[s.Service] {
			s.Backends++
			if alive {
				s.Alive++
			}
		}
	}
	slices.SortFunc(out.Services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(b.PPS+b.Refused, a.PPS+a.Refused), cmp.Compare(a.Service, b.Service))
	})
	slices.SortFunc(out.Backends, func(a, b Backend) int {
		return cmp.Or(cmp.Compare(b.PPS, a.PPS), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Backend, b.Backend))
	})
	slices.SortFunc(out.Reasons, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(b.PPS, a.PPS), cmp.Compare(b.Total, a.Total), cmp.Compare(b.Role, a.Role), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortFunc(out.Nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(b.PPS, a.PPS), cmp.Compare(a.Node, b.Node))
	})
	return out
}

func values[K comparable, V any](m map[K]*V) []V {
	out := make([]V, 0, len(m))
	for v := range maps.Values(m) {
		out = append(out, *v)
	}
	return out
}

// member identifies a member of one endpoint.
type member struct {
	vip, protocol string
	port, id      uint32
}

type sums struct {
	services map[string]*Service
	backends map[[2]string]*Backend
	reasons  map[[2]string]*Reason
	members  map[string]map[member]bool // by service: alive on every mux
}

// rate is a counter's increase per second.
func rate(before, now uint64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	if now < before {
		before = 0
	}
	return float64(now-before) / seconds
}

// node adds one node's report. Members of hosts are the same as those of the muxes and are not
// counted twice.
func (s *sums) node(before, now *apiv1.NodeStatus, seconds float64) Node {
	out := Node{Node: now.GetName(), Role: now.GetRole(), State: state(now), Revision: now.GetSyncedRevision()}
	oldReasons := map[string]uint64{}
	for _, r := range before.GetReasons() {
		oldReasons[r.GetReason()] = r.GetPackets()
	}
	for _, r := range now.GetReasons() {
		pps := rate(oldReasons[r.GetReason()], r.GetPackets(), seconds)
		sum := entry(s.reasons, [2]string{now.GetRole(), r.GetReason()}, Reason{Role: now.GetRole(), Reason: r.GetReason(), Class: r.GetClass()})
		sum.PPS += pps
		sum.Total += r.GetPackets()
		if r.GetClass() == classDrop {
			out.Drops += pps
		}
	}
	type place struct {
		member
		dip string
	}
	at := func(m *apiv1.MemberStatus) place {
		return place{member{m.GetVip(), m.GetProtocol(), m.GetPort(), m.GetMember()}, m.GetDip()}
	}
	old := map[place]*apiv1.MemberStatus{}
	for _, m := range before.GetMembers() {
		old[at(m)] = m
	}
	for _, m := range now.GetMembers() {
		was := old[at(m)]
		pps, bps := 0.0, 0.0
		if was != nil {
			pps, bps = rate(was.GetPackets(), m.GetPackets(), seconds), 8*rate(was.GetBytes(), m.GetBytes(), seconds)
		}
		out.PPS += pps
		out.BPS += bps
		out.Flows += m.GetFlows()
		if now.GetRole() == "mux" {
			s.member(now, m, at(m).member, pps, bps)
		}
	}
	answered := map[string]*apiv1.AnswerStatus{}
	for _, a := range before.GetAnswers() {
		answered[a.GetVip()] = a
	}
	for _, a := range now.GetAnswers() {
		was := answered[a.GetVip()]
		if was == nil {
			continue
		}
		pps, bps := rate(was.GetPackets(), a.GetPackets(), seconds), 8*rate(was.GetBytes(), a.GetBytes(), seconds)
		out.PPS += pps
		out.BPS += bps
		if a.GetService() != "" {
			svc := entry(s.services, a.GetService(), Service{Service: a.GetService()})
			svc.PPS += pps
			svc.BPS += bps
		}
	}
	refused := map[string]uint64{}
	for _, r := range before.GetRefused() {
		refused[r.GetVip()] = r.GetPackets()
	}
	for _, r := range now.GetRefused() {
		// A VIP without a refused packet is in no report, so a new one started at 0.
		entry(s.services, r.GetService(), Service{Service: r.GetService()}).Refused += rate(refused[r.GetVip()], r.GetPackets(), seconds)
	}
	return out
}

func (s *sums) member(n *apiv1.NodeStatus, m *apiv1.MemberStatus, id member, pps, bps float64) {
	svc := entry(s.services, m.GetService(), Service{Service: m.GetService()})
	name := m.GetDip()
	if m.GetDipPort() != 0 {
		name = net.JoinHostPort(name, strconv.Itoa(int(m.GetDipPort())))
	}
	b := entry(s.backends, [2]string{m.GetService(), name}, Backend{Service: m.GetService(), Backend: name, Health: health(m)})
	svc.PPS += pps
	svc.BPS += bps
	svc.Flows += m.GetFlows()
	b.PPS += pps
	b.BPS += bps
	b.Flows += m.GetFlows()
	b.Weight = max(b.Weight, m.GetWeight())
	if !n.GetConnected() {
		return // its report does not count
	}
	if b.Health != health(m) {
		b.Health = "mixed"
	}
	all := s.members[m.GetService()]
	if all == nil {
		all = map[member]bool{}
		s.members[m.GetService()] = all
	}
	was, known := all[id]
	all[id] = m.GetAlive() && (was || !known)
}

func entry[K comparable, V any](m map[K]*V, k K, fresh V) *V {
	v := m[k]
	if v == nil {
		v = &fresh
		m[k] = v
	}
	return v
}

func health(m *apiv1.MemberStatus) string {
	switch {
	case m.GetDraining():
		return "draining"
	case m.GetAlive():
		return "up"
	}
	return "down"
}

func state(n *apiv1.NodeStatus) string {
	switch {
	case n.GetLastSeen() == nil && !n.GetConnected():
		return "never seen"
	case !n.GetConnected():
		return "away"
	case n.GetError() != "":
		return "error"
	}
	return "ready"
}
