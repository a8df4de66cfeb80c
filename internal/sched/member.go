package sched

import (
	"cmp"
	"math"
)

// Member is a member that takes new connections.
type Member struct {
	ID     uint16
	Weight uint16 // 0: it takes none
	// Load is how busy it is, in any unit that all members share; Known false: nobody said lately.
	Load  float64
	Known bool
	// Connections are its active ones, and Opened how many there were since some time, modulo 2^32, when HasConnections.
	Connections    float64
	Opened         uint32
	HasConnections bool
	// Word is that of its load as packets made it since it was told last (WordOf); 0: there is none.
	Word uint64
}

// usual is the load that members have on average when all that is known of them is that they are loaded.
const usual = 100

// Assume gives members whose load is not known the one that the others have for each unit of weight; when none is known, none of them has any.
// It tells how many were not. Members without weight are left out.
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

// InConnections makes loads of another unit (CPU, the application's own) ones of connections: a connection is worth what a connection costs on average where
// both are known, so that new ones can be weighed against loads. Without any known connections the average member is taken to have 100.
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

// Even gives each member that takes connections the same share (round-robin).
func Even(members []Member) []Share {
	out := make([]Share, len(members))
	for i, m := range members {
		out[i] = Share{m.ID, min(uint32(m.Weight), 1)}
	}
	return out
}

// ByWeight gives each member its weight.
func ByWeight(members []Member) []Share {
	out := make([]Share, len(members))
	for i, m := range members {
		out[i] = Share{m.ID, uint32(m.Weight)}
	}
	return out
}

// The weights of Adaptive.
const (
	adaptiveUsual = 10  // of a member with the average load; one that is idle has twice that, by the formula
	adaptiveLeast = 2   // of one that is overloaded
	adaptiveAlpha = 0.5 // how slowly they follow loads
)

// Adaptive gives members shares by their load: AWRR of Cheetah (Barbette et al., IEEE/ACM Transactions on Networking 2022, section IV-B). The factor of a member with load L for each unit of
// its weight, where members have avg on average, is N = round(10·avg / ((1−α)·L + α·avg)) with α = 0.5, at least 2: at most 20, for a member
// without load.
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
