package sim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// Story is an endpoint whose servers are added and removed. An added server is a new one. A removed
// one drains: it gets no new connection, and continues to serve its existing ones, however long
// they last.
type Story struct {
	Name    string
	Servers int // before the first change
	Changes []Change
	// End is the end of the story, after its last change.
	End time.Duration
}

// Change is a change of the pool at one time, in one step.
type Change struct {
	At       time.Duration // after the change before
	Come, Go int
}

// service is the destination of the connections of all stories.
var service = netip.MustParseAddrPort("203.0.113.1:443")

// storyBegins is the start time of stories. Any time but zero would do.
var storyBegins = time.Unix(1_000_000_000, 0).UTC()

// era is the time between two changes of the nodes' plans.
type era struct {
	from    time.Duration
	change  int      // how many changes there were until now
	taking  []uint16 // ids of the members that get new connections, ordered
	present []bool   // by id: the muxes have it
	code    uint8
	ring    []uint16
	// before is the ring of the previous generation, and beforeCode its size code. It is nil in the
	// first.
	before     []uint16
	beforeCode uint8
	// beamer is Beamer's table, of as many buckets as the first ring has slots.
	beamer *beamer
	// turns holds the slots' owners as hosts fold them from the memberships in their plan. It is
	// zero if the plan has none.
	turns ring.Folded
}

// play makes the story's eras: members and their ids by plan.Advance, the hosts' repair state by
// plan.MakeRepair, rings and their fold by package ring. chooser chooses the servers that are
// removed.
func (s Story) play(chooser *rand.Rand) ([]era, error) {
	p := player{
		chooser: chooser,
		state:   plan.EndpointState{Key: lb.EndpointKey{VIP: service.Addr(), Protocol: lb.TCP, Port: service.Port()}},
	}
	if err := p.change(0, Change{Come: s.Servers}); err != nil {
		return nil, err
	}
	for i, c := range s.Changes {
		if err := p.change(c.At, c); err != nil {
			return nil, err
		}
		p.eras[len(p.eras)-1].change = i + 1
	}
	return p.eras, nil
}

// player is a story up to some time.
type player struct {
	chooser *rand.Rand
	state   plan.EndpointState
	wanted  []plan.Wanted
	eras    []era
	builder ring.Builder
}

// change advances time to a change, and makes it.
func (p *player) change(at time.Duration, c Change) error {
	for {
		due := plan.Due(&p.state, p.input(p.now()))
		if due.IsZero() || due.After(storyBegins.Add(at)) {
			break
		}
		if err := p.advance(due.Sub(storyBegins)); err != nil {
			return err
		}
	}
	for range c.Come {
		p.wanted = append(p.wanted, plan.Wanted{Backend: lb.BackendKey{DIP: serverAddress(len(p.wanted)), Port: service.Port()}, Weight: 1})
	}
	for range c.Go {
		var up []int
		for i, w := range p.wanted {
			if w.Weight > 0 {
				up = append(up, i)
			}
		}
		if len(up) < 2 {
			return fmt.Errorf("at %s: a server goes, and %d of them are there: one must stay", at, len(up))
		}
		p.wanted[up[p.chooser.IntN(len(up))]].Weight = 0
	}
	return p.advance(at)
}

// now returns the time of the last era.
func (p *player) now() time.Time {
	if len(p.eras) == 0 {
		return storyBegins
	}
	return storyBegins.Add(p.eras[len(p.eras)-1].from)
}

func (p *player) input(now time.Time) plan.Input {
	return plan.Input{Wanted: p.wanted, KeyID: 1, Size: ring.SizeCode, RepairWindow: lb.DefaultRepairWindow, Now: now}
}

// advance makes the next era.
func (p *player) advance(at time.Duration) (err error) {
	generation := p.state.Generation
	if p.state, err = plan.Advance(p.state, p.input(storyBegins.Add(at))); err != nil {
		return err
	}
	e := era{from: at, code: p.state.RingCode}
	var seats []ring.Seat
	for _, m := range p.state.Members {
		if m.Weight > 0 {
			e.taking = append(e.taking, m.ID)
		}
		for len(e.present) <= int(m.ID) {
			e.present = append(e.present, false)
		}
		e.present[m.ID] = true
		seats = append(seats, ring.Seat{Member: ring.Member{ID: m.ID, DIP: m.Backend.DIP, Port: m.Backend.Port, Weight: m.Weight}})
	}
	e.ring = p.builder.Walked(e.code, seats)
	if n := len(p.eras); n == 0 {
		e.beamer = newBeamer(e.code, e.taking)
	} else {
		last := &p.eras[n-1]
		if e.beamer = last.beamer; !slices.Equal(e.taking, last.taking) {
			e.beamer = e.beamer.next(e.taking)
		}
		e.change = last.change
		if e.before, e.beforeCode = last.ring, last.code; p.state.Generation == generation {
			e.before, e.beforeCode = last.before, last.beforeCode
		}
	}
	e.turns = p.fold()
	p.eras = append(p.eras, e)
	return nil
}

// fold folds the memberships that hosts receive.
func (p *player) fold() ring.Folded {
	window := lb.DefaultRepairWindow
	repair, ok := plan.MakeRepair(&lb.Endpoint{RepairWindow: &window}, &p.state, []plan.Key{{ID: 1}}, lb.EncapIPIP)
	if !ok {
		return ring.Folded{}
	}
	targets := make(map[uint16]*plan.Target, len(repair.Targets))
	for i := range repair.Targets {
		targets[repair.Targets[i].ID] = &repair.Targets[i]
	}
	var rings [][]uint16
	for _, m := range repair.Memberships {
		var seats []ring.Seat
		for _, s := range m.Seats {
			if t := targets[s.ID]; t != nil {
				seats = append(seats, ring.Seat{Member: ring.Member{ID: s.ID, DIP: t.DIP, Port: t.Port, Weight: s.Weight}, Backup: s.Backup, Down: s.Down})
			}
		}
		rings = append(rings, p.builder.Walked(m.RingCode, seats))
	}
	return ring.Fold(rings...)
}

// owner returns the member that owns a hash in the era's ring.
func (e *era) owner(hash uint64) uint16 { return e.ring[ring.Slot(hash, e.code)] }

// ownerBefore returns its owner in the previous ring, or the current one if there was none.
func (e *era) ownerBefore(hash uint64) uint16 {
	if e.before == nil {
		return e.owner(hash)
	}
	return e.before[ring.Slot(hash, e.beforeCode)]
}

// former returns the member to which hosts forward it, or the current owner if they have no
// previous one.
func (e *era) former(hash uint64) uint16 {
	if e.turns.Slots == nil {
		return e.owner(hash)
	}
	return e.turns.Slots[ring.Slot(hash, e.turns.Code)].Former()
}

// modulo returns its member by plain hashing.
func (e *era) modulo(hash uint64) uint16 { return e.taking[hash%uint64(len(e.taking))] }

// has reports whether muxes have a member.
func (e *era) has(id uint16) bool { return int(id) < len(e.present) && e.present[id] }

// serverAddress returns the DIP of the n-th server.
func serverAddress(n int) netip.Addr { return numbered(10<<24|20<<16, n) }

// numbered returns the n-th IPv4 address from a first one on.
func numbered(first uint32, n int) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, first+uint32(n))))
}

// Scaling is the story of Cheetah's Figure 9 (NSDI 2020): 24 servers for 20 s, then seven more, one
// after the other, until 30 s. From 31 s to 40 s eight are removed. It ends after a minute.
func Scaling() Story {
	s := Story{Name: "24-31-23", Servers: 24, End: time.Minute}
	for i := range 7 {
		s.Changes = append(s.Changes, Change{At: 20*time.Second + time.Duration(i)*10*time.Second/7, Come: 1})
	}
	for i := range 8 {
		s.Changes = append(s.Changes, Change{At: 31*time.Second + time.Duration(i)*9*time.Second/8, Go: 1})
	}
	return s
}

// Churn is a pool of `servers` servers and `changes` changes, one a minute: with equal odds a
// server is added or removed.
func Churn(servers, changes int, chooser *rand.Rand) Story {
	s := Story{Name: fmt.Sprintf("churn-%d", servers), Servers: servers}
	for i := range changes {
		c := Change{At: time.Duration(i+1) * time.Minute, Come: 1}
		if chooser.IntN(2) == 0 {
			c.Come, c.Go = 0, 1
		}
		s.Changes = append(s.Changes, c)
	}
	s.End = time.Duration(changes+1) * time.Minute
	return s
}

// Sizes returns how many servers accept connections after each change, including the time before
// the first one.
func (s Story) Sizes() []int {
	sizes := []int{s.Servers}
	for _, c := range s.Changes {
		sizes = append(sizes, sizes[len(sizes)-1]+c.Come-c.Go)
	}
	return sizes
}
