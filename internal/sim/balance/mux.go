package balance

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/sched"
)

// Hash is plain hashing, modulo the number of servers. It is the reference for the others.
const Hash = "hash"

// Schedulers are the simulated schedulers.
var Schedulers = []string{
	Hash, lb.SchedulerMaglev, lb.SchedulerRandom, lb.SchedulerRoundRobin, lb.SchedulerWeightedRoundRobin, lb.SchedulerAdaptive,
	lb.SchedulerP2C, lb.SchedulerLeastConnections,
}

// mux assigns connections to servers as a mux does: by the hosts' reports, and by its own
// assignments.
type mux struct {
	scheduler string
	servers   int
	ring      []uint16
	code      uint8
	desk      *sched.Desk
	members   []sched.Member
	sequence  []uint16
	phases    []uint32 // by CPU
	words     []uint64
	taken     uint32
}

func newMux(scheduler string, s Setup, r *rand.Rand) *mux {
	m := &mux{scheduler: scheduler, servers: s.Servers, words: make([]uint64, s.Servers)}
	for range s.CPUs {
		m.phases = append(m.phases, r.Uint32())
	}
	for i := range s.Servers {
		m.members = append(m.members, sched.Member{ID: uint16(i), Weight: 1})
	}
	switch scheduler {
	case Hash:
	case lb.SchedulerMaglev:
		members := ringMembers(s.Servers)
		m.code = ring.SizeCode(slices.Repeat([]uint16{1}, s.Servers), 0)
		m.ring = ring.Build(m.code, members)
	default:
		m.desk = &sched.Desk{Scheduler: scheduler}
	}
	return m
}

// ringMembers returns the servers of a ring.
func ringMembers(n int) (out []ring.Member) {
	for i := range n {
		out = append(out, ring.Member{ID: uint16(i), DIP: address(i), Port: 80, Weight: 1})
	}
	return out
}

// tick does the periodic work of the agent.
func (m *mux) tick(now time.Time, every, lag time.Duration) {
	if m.desk == nil {
		return
	}
	for i, word := range m.words {
		m.members[i].Word = word
	}
	orders := m.desk.Next(sched.News{Members: m.members, Taken: m.taken, Now: now, Every: every, Lag: lag})
	m.sequence = orders.Sequence
	for _, w := range orders.Loads {
		m.words[w.ID] = w.Word
	}
}

// hear applies the report of a server's host.
func (m *mux) hear(server int, l load.Load) {
	of := &m.members[server]
	of.Load, of.Known, of.Connections, of.Opened, of.HasConnections = float64(l.Connections), true, float64(l.Connections), l.Opened, true
}

// choose assigns a connection with this hash on a CPU to a server.
func (m *mux) choose(hash uint64, cpu int) int {
	switch m.scheduler {
	case Hash:
		return int(hash % uint64(m.servers))
	case lb.SchedulerMaglev:
		return int(m.ring[ring.Slot(hash, m.code)])
	case lb.SchedulerRandom, lb.SchedulerP2C:
		one, other := sched.Draws(hash, len(m.sequence))
		to := int(m.sequence[one])
		if m.scheduler == lb.SchedulerP2C {
			if second := int(m.sequence[other]); sched.Lighter(m.words[to], m.words[second]) {
				to = second
			}
			m.words[to] = sched.Given(m.words[to])
		}
		return to
	}
	m.taken++
	n := uint32(len(m.sequence))
	at := uint64(m.phases[cpu]) * uint64(n) >> 32
	m.phases[cpu] += math.MaxUint32/n + 1
	return int(m.sequence[at])
}

// closed records the end of a connection that the mux assigned.
func (m *mux) closed(server int) {
	if word := m.words[server]; word<<(64-sched.StepShift) >= word>>sched.StepShift<<(64-sched.StepShift) {
		m.words[server] -= word >> sched.StepShift
	}
}
