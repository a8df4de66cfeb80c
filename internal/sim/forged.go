package sim

import (
	"math"
	"math/bits"
	"math/rand/v2"

	"github.com/shuntlb/shunt/internal/cookie"
)

// Forgery is how an attacker comes by a cookie that nobody made for its connection.
type Forgery string

// The forgeries. In all but the first the attacker has a cookie of a connection of its own, and knows which server that is on.
const (
	// Random: a number without thought.
	Random Forgery = "random"
	// FlipOne: one bit of its cookie changed. It wants the server to which this bit led most often when it tried before.
	FlipOne Forgery = "flip-one"
	// FlipTo: its cookie XOR the difference between the ids of its server and of the one that it wants.
	FlipTo Forgery = "flip-to"
	// Replay: its cookie on another connection, for the same server.
	Replay Forgery = "replay"
)

// Forgeries are all of them.
var Forgeries = []Forgery{Random, FlipOne, FlipTo, Replay}

// ForgedRow is what became of forged cookies.
type ForgedRow struct {
	// Scheme is Cookies, or Published with cookies as the authors' program makes them.
	Scheme  Rule    `json:"scheme"`
	Forgery Forgery `json:"forgery"`
	Servers int     `json:"servers"`
	Tries   int     `json:"tries"`
	// Accepted are those by which the packet went to a server; Chosen those by which it went to the one that the attacker wanted.
	Accepted    int     `json:"accepted"`
	Chosen      int     `json:"chosen"`
	AcceptedPct float64 `json:"accepted_pct"`
	ChosenPct   float64 `json:"chosen_pct"`
	// IdealPct is the share that any scheme of 15 bits must accept, for each server needs a number: Servers of 2^15.
	IdealPct float64 `json:"ideal_pct"`
}

// PlayForged forges so many cookies in each way under both schemes, for pools of these sizes.
func PlayForged(seed uint64, servers []int, tries int) (rows []ForgedRow) {
	for _, n := range servers {
		for _, scheme := range []Rule{Published, Cookies} {
			for i, forgery := range Forgeries {
				f := forger{random: rand.New(rand.NewPCG(seed, uint64(streamForged+i))), servers: n}
				if f.mint, f.read, f.shift = mintCookie, readCookie, cookie.CheckBits; scheme == Published {
					f.mint, f.read, f.shift = mintPublished, f.readPublished, 0
				}
				row := ForgedRow{Scheme: scheme, Forgery: forgery, Servers: n, Tries: tries}
				row.Accepted, row.Chosen = f.forge(forgery, tries)
				row.AcceptedPct, row.ChosenPct, row.IdealPct = fine(row.Accepted, tries), fine(row.Chosen, tries), fine(n, 1<<publishedBits)
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// forger tries cookies on a pool with members of ids from 0 on.
type forger struct {
	random  *rand.Rand
	servers int
	// mint is the cookie of a member for a connection; read is the member that one leads to.
	mint func(f *Flow, id uint16) uint16
	read func(f *Flow, cookie uint16) (id uint16, ok bool)
	// shift is where the id lies in what a cookie hides.
	shift int
}

// fine is a share in percent, to a hundred-thousandth.
func fine(part, of int) float64 { return math.Round(1e7*float64(part)/float64(of)) / 1e5 }

func mintCookie(f *Flow, id uint16) uint16 {
	return cookie.Encode(cookie.PRF(cookieKeys[0], f.bound()), 0, id)
}

func readCookie(f *Flow, c uint16) (uint16, bool) {
	return cookie.Decode(cookie.PRF(cookieKeys[cookie.KeyID(c)], f.bound()), c)
}

func mintPublished(f *Flow, id uint16) uint16 { return publishedCookie(id, f.Hash()) }

// readPublished takes the index modulo the size of the table of servers, a power of two, as the program does.
func (f *forger) readPublished(flow *Flow, c uint16) (uint16, bool) {
	return publishedCookie(c, flow.Hash()) & (1<<bits.Len(uint(f.servers-1)) - 1), true
}

// forge counts what became of cookies. For FlipOne as many are tried before.
func (f *forger) forge(how Forgery, tries int) (accepted, chosen int) {
	var hope [publishedBits]uint16
	if how == FlipOne {
		hope = f.learn(tries)
	}
	for range tries {
		flow, id := Flow{Client: randomClient(f.random)}, uint16(f.random.IntN(f.servers))
		forged, wanted := f.mint(&flow, id), id
		switch how {
		case Random:
			forged = uint16(f.random.UintN(1 << publishedBits))
		case FlipOne:
			bit := f.random.IntN(publishedBits)
			forged ^= 1 << bit
			wanted = id ^ hope[bit]
		case FlipTo:
			for wanted == id {
				wanted = uint16(f.random.IntN(f.servers))
			}
			forged ^= (id ^ wanted) << f.shift
		case Replay:
			flow = Flow{Client: randomClient(f.random)}
		}
		if got, ok := f.read(&flow, forged); ok && int(got) < f.servers {
			accepted++
			if got == wanted {
				chosen++
			}
		}
	}
	return accepted, chosen
}

// learn is by which difference each changed bit moves the id most often, of so many tries in all.
func (f *forger) learn(tries int) (most [publishedBits]uint16) {
	var moved [publishedBits]map[uint16]int
	for i := range tries {
		flow, id, bit := Flow{Client: randomClient(f.random)}, uint16(f.random.IntN(f.servers)), i%publishedBits
		got, ok := f.read(&flow, f.mint(&flow, id)^1<<bit)
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
	return most
}
