package sim

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/ring"
)

// Flow is a connection of a story.
type Flow struct {
	Client     netip.AddrPort
	Begin, End time.Duration
}

// ringKey is the ring hash key of all stories.
var ringKey = ring.Key{K0: 0x0706050403020100, K1: 0x0f0e0d0c0b0a0908}

// Hash returns the hash for ring lookups.
func (f *Flow) Hash() uint64 {
	return ring.FlowHash(ringKey, 0, f.Client.Addr(), service.Addr(), protocolTCP, f.Client.Port(), service.Port())
}

// bound returns the flow that its cookies are bound to.
func (f *Flow) bound() cookie.Flow {
	return cookie.Flow{Client: f.Client, VIP: service}
}

const protocolTCP = 6

// clients is the first client address.
const clients = 100<<24 | 64<<16

// randomClient returns a random client's address and port.
func randomClient(r *rand.Rand) netip.AddrPort {
	return netip.AddrPortFrom(numbered(clients, r.IntN(1<<22)), uint16(1024+r.IntN(1<<16-1024)))
}

// Lasting returns connections that begin before the first change and outlive the story.
func (s Story) Lasting(count int, r *rand.Rand) []Flow {
	flows := make([]Flow, count)
	for i := range flows {
		flows[i] = Flow{Client: randomClient(r), End: s.End + 1}
	}
	return flows
}

// Passing returns connections that begin at random times and last for a mean time, exponentially
// distributed. They begin early enough before the story that as many are open at its beginning as
// at its end. They are ordered by their beginning, and each is open at some time of the story.
func (s Story) Passing(count int, mean time.Duration, r *rand.Rand) []Flow {
	const longest = 20 // lifetimes; one of e²⁰ = 500 million lasts longer
	flows := make([]Flow, 0, count)
	for len(flows) < count {
		begin := time.Duration(r.Float64()*float64(s.End+longest*mean)) - longest*mean
		f := Flow{Client: randomClient(r), Begin: begin, End: begin + time.Duration(r.ExpFloat64()*float64(mean))}
		if f.End > 0 {
			flows = append(flows, f)
		}
	}
	slices.SortFunc(flows, func(a, b Flow) int { return int(a.Begin - b.Begin) })
	return flows
}
