package sched

import (
	"cmp"
	"math"
)

// Member is a member that takes new connections.
type Member struct {
	ID     uint16
	Weight uint16 // 0: it takes none
	// Load is its load, in any unit that all members share; Known is false if there is no recent
	// report.
	Load  float64
	Known bool
	// Connections are its active ones, and Opened the number of those that began since some time,
	// modulo 2^32; both only if HasConnections.
	Connections    float64
	Opened         uint32
	HasConnections bool
	// Word is its packed load, with the increments of packets since it was written last (WordOf);
	// 0: there is none.
	Word uint64
}

// usual is the assumed average load of members in connections if only loads in another unit are
// known.
const usual = 100

// Assume sets the load of members without a known one to the average of the others per unit of
// weight; if none is known, to 0. It returns the number of members without one. Members without
// weight are left out.
func Assume(members []Member) (known []Member, unknown int) {
	load, weight := 0.0, 0.0
	for _, m := range members {
		if m.Weight == 0 {
			continue
		}
		known = append(known, m)
		if m.Known {
			load, weight = load+m.Load, weight+float64(m.Weight)
		} else {
			unknown++
		}
	}
	each := 0.0
	if weight > 0 {
		each = load / weight
	}
	for i := range known {
		if !known[i].Known {
			known[i].Load = each * float64(known[i].Weight)
		}
	}
	return known, unknown
}

// InConnections converts loads of another unit (CPU, the application's own) to connections, so that
// new connections can be compared with loads: a connection counts as much as a connection costs on
// average where both are known. Without known connections the average member is assumed to have
// 100.
func InConnections(members []Member) []Member {
	load, connections, all := 0.0, 0.0, 0.0
	for _, m := range members {
		all += m.Load
		if m.Known && m.HasConnections {
			load, connections = load+m.Load, connections+m.Connections
		}
	}
	scale := connections / load
	if load <= 0 || connections <= 0 {
		scale = usual * float64(len(members)) / cmp.Or(all, 1)
	}
	out := make([]Member, len(members))
	for i, m := range members {
		m.Load *= scale
		out[i] = m
	}
	return out
}

// Even gives each member with weight the same share (round-robin).
func Even(members []Member) []Share {
	out := make([]Share, len(members))
	for i, m := range members {
		out[i] = Share{m.ID, min(uint32(m.Weight), 1)}
	}
	return out
}

// ByWeight gives each member its weight as share.
func ByWeight(members []Member) []Share {
	out := make([]Share, len(members))
	for i, m := range members {
		out[i] = Share{m.ID, uint32(m.Weight)}
	}
	return out
}

// Constants of Adaptive.
const (
	// for a member with the average load; the formula gives an idle one twice that
	adaptiveUsual = 10
	adaptiveLeast = 2   // for an overloaded member
	adaptiveAlpha = 0.5 // how slowly factors follow loads
)

// Adaptive gives members shares by their load: AWRR of Cheetah (Barbette et al., IEEE/ACM
// Transactions on Networking 2022, section IV-B). The factor of a member with load L per unit of
// its weight, where avg is the average of all members, is N = round(10·avg / ((1−α)·L + α·avg))
// with α = 0.5, at least 2: at most 20, for a member without load.
func Adaptive(members []Member) []Share {
	load, weight := 0.0, 0.0
	for _, m := range members {
		if m.Weight > 0 {
			load, weight = load+m.Load, weight+float64(m.Weight)
		}
	}
	avg := load / max(weight, 1)
	out := make([]Share, len(members))
	for i, m := range members {
		n := float64(adaptiveUsual)
		if each := m.Load / max(float64(m.Weight), 1); avg > 0 {
			n = math.Round(adaptiveUsual * avg / ((1-adaptiveAlpha)*each + adaptiveAlpha*avg))
		}
		out[i] = Share{m.ID, uint32(m.Weight) * uint32(max(n, adaptiveLeast))}
	}
	return out
}
