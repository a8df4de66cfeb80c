package sim

import (
	"math"
	"math/rand/v2"
)

// Forgery is how an attacker obtains a cookie, or a QUIC connection id, that was not made for its
// connection.
type Forgery string

// The forgeries. In all but the first the attacker has a cookie of its own connection, and knows
// the server of that connection.
const (
	// Random is a random number, except for the id of the key.
	Random Forgery = "random"
	// FlipOne is its cookie with one bit changed. It wants the server to which this bit led most
	// often in earlier tries.
	FlipOne Forgery = "flip-one"
	// FlipTo is its cookie XOR the difference between the ids of its server and of the wanted one.
	FlipTo Forgery = "flip-to"
	// Replay is its cookie on another connection, for the same server. With connection ids this is
	// no forgery, because a client that migrates does it.
	Replay Forgery = "replay"
)

// Forgeries are all forgeries.
var Forgeries = []Forgery{Random, FlipOne, FlipTo, Replay}

// ForgedRow is the result of forged cookies.
type ForgedRow struct {
	Scheme  Rule    `json:"scheme"`
	Forgery Forgery `json:"forgery"`
	Servers int     `json:"servers"`
	Tries   int     `json:"tries"`
	// Accepted counts the packets that went to a server. Chosen counts those that went to the
	// server that the attacker wanted.
	Accepted    int     `json:"accepted"`
	Chosen      int     `json:"chosen"`
	AcceptedPct float64 `json:"accepted_pct"`
	ChosenPct   float64 `json:"chosen_pct"`
	// IdealPct is the share of random cookies that any scheme of as many bits accepts, because each
	// server needs a number.
	IdealPct float64 `json:"ideal_pct"`
}

// PlayForged forges `tries` cookies in each way under every scheme, for pools of these sizes. It
// omits schemes with too few numbers for a pool.
func PlayForged(seed uint64, servers []int, tries int) (rows []ForgedRow) {
	for _, n := range servers {
		for _, scheme := range ForgedSchemes {
			if n >= 1<<schemeOf(scheme, n).names() {
				continue
			}
			for i, forgery := range Forgeries {
				f := forger{random: rand.New(rand.NewPCG(seed, uint64(streamForged+i))), servers: n, scheme: schemeOf(scheme, n)}
				row := ForgedRow{Scheme: scheme, Forgery: forgery, Servers: n, Tries: tries}
				row.Accepted, row.Chosen = f.forge(forgery, tries)
				row.AcceptedPct, row.ChosenPct, row.IdealPct = fine(row.Accepted, tries), fine(row.Chosen, tries), fine(n, 1<<f.scheme.names())
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// fine returns a share in percent, to a hundred-thousandth.
func fine(part, of int) float64 { return math.Round(1e7*float64(part)/float64(of)) / 1e5 }

// forger tries cookies on a pool with member ids from 0 on.
type forger struct {
	random  *rand.Rand
	servers int
	scheme  scheme
}

// forge counts accepted cookies and those that reach the wanted server. For FlipOne it first makes
// as many tries to learn.
func (f *forger) forge(how Forgery, tries int) (accepted, chosen int) {
	hope := make([]uint16, f.scheme.bits())
	if how == FlipOne {
		f.learn(tries, hope)
	}
	for range tries {
		flow, id := Flow{Client: randomClient(f.random)}, uint16(f.random.IntN(f.servers))
		forged, wanted := f.scheme.mint(&flow, id, f.random), id
		switch how {
		case Random:
			for bit := range f.scheme.bits() {
				if f.random.IntN(2) == 0 {
					f.scheme.flip(&forged, bit)
				}
			}
		case FlipOne:
			bit := f.random.IntN(f.scheme.bits())
			f.scheme.flip(&forged, bit)
			wanted = id ^ hope[bit]
		case FlipTo:
			for wanted == id {
				wanted = uint16(f.random.IntN(f.servers))
			}
			f.scheme.move(&forged, id^wanted)
		case Replay:
			flow = Flow{Client: randomClient(f.random)}
		}
		if got, ok := f.scheme.read(&flow, &forged); ok && int(got) < f.servers {
			accepted++
			if got == wanted {
				chosen++
			}
		}
	}
	return accepted, chosen
}

// learn determines, for each changed bit, the id difference that it causes most often, from `tries`
// tries in all.
func (f *forger) learn(tries int, most []uint16) {
	moved := make([]map[uint16]int, len(most))
	for i := range tries {
		flow, id, bit := Flow{Client: randomClient(f.random)}, uint16(f.random.IntN(f.servers)), i%len(most)
		forged := f.scheme.mint(&flow, id, f.random)
		f.scheme.flip(&forged, bit)
		got, ok := f.scheme.read(&flow, &forged)
		if !ok || int(got) >= f.servers {
			continue
		}
		if moved[bit] == nil {
			moved[bit] = map[uint16]int{}
		}
		by := got ^ id
		moved[bit][by]++
		if n, best := moved[bit][by], moved[bit][most[bit]]; n > best || n == best && by < most[bit] {
			most[bit] = by
		}
	}
}
