package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/cookie"
)

// Encoding is how a server's timestamps carry a cookie.
type Encoding string

// The encodings.
const (
	// PublishedServer is Cheetah's with state for each connection, as in the authors' kernel for
	// servers.
	PublishedServer Encoding = "cheetah-server"
	// PublishedBalancer is Cheetah's with state for each server, as in the authors' balancer, for a
	// server that always has data to send.
	PublishedBalancer Encoding = "cheetah-balancer"
	// EVC is Shunt's.
	EVC Encoding = "shunt"
)

// Encodings are all encodings.
var Encodings = []Encoding{PublishedServer, PublishedBalancer, EVC}

// IdleRow is the result of pushes after a silence: segments of a server to a client that received
// none for this long. The client drops a segment whose timestamp is older than the last one (PAWS,
// RFC 7323 section 5). It makes no exception for old connections.
type IdleRow struct {
	Encoding Encoding `json:"encoding"`
	IdleS    float64  `json:"idle_s"`
	Pushes   int      `json:"pushes"`
	// AtOnce counts the pushes that the client accepted the first time. Lost counts those that it
	// never accepted before the server gave up.
	AtOnce    int     `json:"at_once"`
	Lost      int     `json:"lost"`
	AtOncePct float64 `json:"at_once_pct"`
	// MedianS and WorstS are the delays of the pushes that are not lost, by the server's
	// retransmissions, in seconds.
	MedianS float64 `json:"median_s"`
	WorstS  float64 `json:"worst_s"`
}

// PlayIdle makes `pushes` pushes after each silence, over connections that begin at random times of
// the server's clock.
func PlayIdle(seed uint64, silences []time.Duration, pushes int) (rows []IdleRow) {
	for _, encoding := range Encodings {
		for _, silence := range silences {
			random := rand.New(rand.NewPCG(seed, streamIdle))
			row := IdleRow{Encoding: encoding, IdleS: silence.Seconds(), Pushes: pushes}
			var took []float64
			for range pushes {
				after, ok := push(newStamper(encoding, uint16(random.UintN(1<<publishedBits))), random.Uint32(), silence, random)
				if !ok {
					row.Lost++
					continue
				}
				if after == 0 {
					row.AtOnce++
				}
				took = append(took, after.Seconds())
			}
			row.AtOncePct = percent(row.AtOnce, pushes)
			if slices.Sort(took); len(took) > 0 {
				row.MedianS, row.WorstS = took[len(took)/2], took[len(took)-1]
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// A Linux server's retransmissions on a short path: the first after firstRetry, each interval twice
// the previous one, at most lastRetry. The server gives up after retries (net.ipv4.tcp_retries2).
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 120 * time.Second
	retries    = 15
)

// push opens a connection when the server's clock is at `now`, lets both ends send for a while and
// then be silent. It returns how long the client rejected the segment that the server then sent,
// and false if the server gave up.
func push(s stamper, now uint32, silence time.Duration, random *rand.Rand) (time.Duration, bool) {
	tick := func(d time.Duration) { now += uint32(d / time.Millisecond) }
	c := client{recent: s.answer(now)}
	for range 5 {
		tick(time.Duration(random.IntN(200)) * time.Millisecond)
		s.echo(c.recent)
		if !c.takes(s.stamp(now)) {
			return 0, false
		}
	}
	s.echo(c.recent)
	tick(silence)
	waited, retry := time.Duration(0), firstRetry
	for range retries + 1 {
		if c.takes(s.stamp(now)) {
			return waited, true
		}
		s.echo(c.recent) // it replies to a dropped segment
		tick(retry)
		waited += retry
		retry = min(2*retry, lastRetry)
	}
	return 0, false
}

// client is a client's test for old segments.
type client struct{ recent uint32 } // TS.Recent

// takes reports whether the client accepts a segment with a timestamp.
func (c *client) takes(stamp uint32) bool {
	if int32(stamp-c.recent) < 0 {
		return false
	}
	c.recent = stamp
	return true
}

// stamper converts a server's timestamps to those that the client receives. Times are in
// milliseconds.
type stamper interface {
	// answer returns the timestamp of a SYN-ACK. stamp returns that of any other segment.
	answer(t uint32) uint32
	stamp(t uint32) uint32
	// echo receives the timestamp that the client sends back.
	echo(w uint32)
}

func newStamper(e Encoding, c uint16) stamper {
	if e == EVC {
		return &evcStamper{cookie: c}
	}
	return &publishedStamper{cookie: uint32(c), busy: e == PublishedBalancer}
}

// evcStamper is Shunt's host.
type evcStamper struct {
	cookie.EVC
	cookie uint16
}

func (s *evcStamper) answer(t uint32) uint32 { return s.Answer(cookie.HostBits, t, s.cookie, false) }
func (s *evcStamper) stamp(t uint32) uint32  { return s.Stamp(cookie.HostBits, t, s.cookie) }
func (s *evcStamper) echo(w uint32)          { s.Echo(cookie.HostBits, w) }

// publishedStamper writes a cookie over the upper half of timestamps except one version bit. The
// bit flips whenever the half has changed since the last segment. With a busy server's state it
// flips each time that the half changes.
type publishedStamper struct {
	cookie, upper, version uint32
	begun, busy            bool
}

func (s *publishedStamper) answer(t uint32) uint32 { return s.stamp(t) }
func (s *publishedStamper) echo(uint32)            {}

func (s *publishedStamper) stamp(t uint32) uint32 {
	upper := t >> 16
	switch {
	case s.busy:
		s.version = upper & 1
	case s.begun && upper != s.upper:
		s.version ^= 1
	}
	s.begun, s.upper = true, upper
	return s.version<<31 | s.cookie<<16 | t&0xffff
}

// Silences returns `count` times from a second to a thousand, evenly on a logarithmic scale, and
// the given ones, in order.
func Silences(count int, also ...time.Duration) []time.Duration {
	out := slices.Clone(also)
	for i := range count {
		s := math.Pow(1000, float64(i)/float64(count-1))
		out = append(out, time.Duration(math.Round(s*100))*10*time.Millisecond)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
