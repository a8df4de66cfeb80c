package balance

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/load"
)

// Setup is the simulated cluster.
type Setup struct {
	Servers, Muxes int
	CPUs           int // of each mux
	// Refresh is how often per second hosts sample their servers, and muxes use the hosts' reports.
	Refresh float64
	// Delay is the latency of a host's report. Lost is the share of reports that do not arrive at a
	// given mux.
	Delay time.Duration
	Lost  float64
	// Blind means that muxes do not see connections end, as with affinity cookie.
	Blind bool
	Seed  uint64
}

// step is the time step of the simulation.
const step = time.Millisecond

// crowd is servers, their hosts, and the muxes in front of them.
type crowd struct {
	s      Setup
	r      *rand.Rand
	now    int // in steps
	every  int // steps between two samples
	muxes  []*mux
	open   []int    // connections by server
	opened []uint32 // connections that ever began
	said   []said
	words  []word // in flight, by time
}

// said is a host's last report and its time.
type said struct {
	load.Load
	at int
}

// word is a host's report.
type word struct {
	at, server int
	load       load.Load
}

func newCrowd(scheduler string, s Setup, r *rand.Rand) *crowd {
	c := &crowd{
		s: s, r: r, every: max(int(float64(time.Second/step)/s.Refresh), 1),
		open: make([]int, s.Servers), opened: make([]uint32, s.Servers), said: make([]said, s.Servers),
	}
	for range s.Muxes {
		m := newMux(scheduler, s, r)
		m.tick(c.time(), c.interval(), c.lag())
		c.muxes = append(c.muxes, m)
	}
	return c
}

func (c *crowd) time() time.Time { return time.Unix(0, 0).Add(time.Duration(c.now) * step) }

func (c *crowd) interval() time.Duration { return time.Duration(c.every) * step }

// lag returns the mean age of the reported loads.
func (c *crowd) lag() time.Duration { return c.interval()/2 + c.s.Delay }

// pass runs one step: hosts sample, reports arrive, and muxes act. Each host and each mux has its
// own phase within an interval.
func (c *crowd) pass() {
	for server := c.now % c.every; server < len(c.open); server += c.every {
		l := load.Load{Connections: uint32(c.open[server]), Opened: c.opened[server], Has: load.HasConnections}
		if was := c.said[server]; l.Differs(was.Load) || c.now-was.at >= int(load.RefreshEvery/step) {
			c.said[server] = said{l, c.now}
			c.words = append(c.words, word{c.now + int(c.s.Delay/step), server, l})
		}
	}
	for len(c.words) > 0 && c.words[0].at <= c.now {
		for _, m := range c.muxes {
			if c.s.Lost == 0 || c.r.Float64() >= c.s.Lost {
				m.hear(c.words[0].server, c.words[0].load)
			}
		}
		c.words = c.words[1:]
	}
	for i, m := range c.muxes {
		if c.now%c.every == i*c.every/len(c.muxes) {
			m.tick(c.time(), c.interval(), c.lag())
		}
	}
	c.now++
}

// give assigns a new connection to a server through one of the muxes.
func (c *crowd) give() (server, by int) {
	by = c.r.IntN(len(c.muxes))
	m := c.muxes[by]
	server = m.choose(c.r.Uint64(), c.r.IntN(len(m.phases)))
	c.open[server]++
	c.opened[server]++
	return server, by
}

// end ends a connection.
func (c *crowd) end(server, by int) {
	c.open[server]--
	if !c.s.Blind {
		c.muxes[by].closed(server)
	}
}

// poisson draws the number of events for a mean of `mean`.
func poisson(r *rand.Rand, mean float64) (n int) {
	for ; mean > 30; mean -= 30 {
		n += poisson(r, 30)
	}
	for p := r.Float64(); p > math.Exp(-mean); p *= r.Float64() {
		n++
	}
	return n
}

// address returns the address of a server.
func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, byte(i >> 8), byte(i)}) }
