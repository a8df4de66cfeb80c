package sim

import (
	"math"
	"math/rand/v2"
)

// Forgery is how an attacker comes by a cookie, or a connection id of QUIC, that nobody made for its connection.
type Forgery string

// The forgeries. In all but the first the attacker has a cookie of a connection of its own, and knows which server that is on.
const (
	// Random: a number without thought, but for the id of the key.
	Random Forgery = "random"
	// FlipOne: one bit of its cookie changed. It wants the server to which this bit led most often when it tried before.
	FlipOne Forgery = "flip-one"
	// FlipTo: its cookie XOR the difference between the ids of its server and of the one that it wants.
	FlipTo Forgery = "flip-to"
	// Replay: its cookie on another connection, for the same server. Of connection ids that is no forgery: a client that moves does it.
	Replay Forgery = "replay"
)

// Forgeries are all of them.
var Forgeries = []Forgery{Random, FlipOne, FlipTo, Replay}

// ForgedRow is what became of forged cookies.
type ForgedRow struct {
	Scheme  Rule    `json:"scheme"`
	Forgery Forgery `json:"forgery"`
	Servers int     `json:"servers"`
	Tries   int     `json:"tries"`
	// Accepted are those by which the packet went to a server; Chosen those by which it went to the one that the attacker wanted.
	Accepted    int     `json:"accepted"`
	Chosen      int     `json:"chosen"`
	AcceptedPct float64 `json:"accepted_pct"`
	ChosenPct   float64 `json:"chosen_pct"`
	// IdealPct is the share of random ones that any scheme of as many bits accepts, for each server needs a number.
	IdealPct float64 `json:"ideal_pct"`
}

// PlayForged forges so many cookies in each way under every scheme, for pools of these sizes. Schemes whose numbers do not suffice for a pool are left out.
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

// fine is a share in percent, to a hundred-thousandth.
func fine(part, of int) float64 { return math.Round(1e7*float64(part)/float64(of)) / 1e5 }

// forger tries cookies on a pool with members of ids from 0 on.
type forger struct {
	random  *rand.Rand
	servers int
	scheme  scheme
}

// forge counts what became of cookies. For FlipOne as many are tried before.
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

// learn is by which difference each changed bit moves the id most often, of so many tries in all.
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
