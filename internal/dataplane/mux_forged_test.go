package dataplane

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/wire"
)

// forgedServers is the size of the pool that cookies are forged for.
const forgedServers = 100

// forgery is how an attacker comes by a cookie for a segment: from one of its own, for another segment where it likes. It has them for key 0.
type forgery struct {
	name  string
	forge func(r *rand.Rand, own uint16) (cookie uint16, elsewhere bool)
}

var forgeries = []forgery{
	{"random", func(r *rand.Rand, _ uint16) (uint16, bool) { return uint16(r.UintN(1 << 15)), false }},
	{"a bit changed", func(r *rand.Rand, own uint16) (uint16, bool) { return own ^ 1<<r.UintN(15), false }},
	{"replayed elsewhere", func(_ *rand.Rand, own uint16) (uint16, bool) { return own, true }},
}

// TestForgedCookieOdds: the program takes as many forged cookies for good as there are servers among all cookies (protocol section 1.6: N of 2^15), hardly one for
// the server that the attacker wants, and those it takes are the very ones that this server's cookies are made as.
func TestForgedCookieOdds(t *testing.T) {
	const tries, seed = 60_000, 11
	var outers []string
	members := map[string]uint16{}
	for id := range forgedServers {
		outer := fmt.Sprintf("10.20.%d.%d", 1+id/50, 10+id%50)
		outers, members[outer] = append(outers, outer), uint16(id)
	}
	f := newFlowFixture(t, cookieEndpoint(muxVIP4, 80, outers...))
	for _, how := range forgeries {
		t.Run(how.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			invalid := f.reasonsNow()["cookie_invalid"]
			accepted, chosen, refused := 0, 0, 0
			for range tries {
				port, id := uint16(1024+r.UintN(60_000)), uint16(r.UintN(forgedServers))
				wanted := id
				forged, elsewhere := how.forge(r, uint16(cookie.HostBits.Cookie(stampFor(segment4(port, 0), testCookies, 0, id))))
				if elsewhere {
					port = 1024 + (port-1024+1+uint16(r.UintN(1000)))%60_000
				} else if how.name != "random" {
					wanted = uint16(r.UintN(forgedServers))
				}
				packet := segment4(port, wire.ACK, usualOptions(cookie.HostBits.Place(r.Uint32(), uint32(forged)))...)
				verdict, out := f.run(packet.Frame())
				if verdict != xdpTX || len(out) < 34 {
					t.Fatalf("verdict %d", verdict)
				}
				got, known := members[netip.AddrFrom4([4]byte(out[30:34])).String()]
				if !known {
					t.Fatalf("sent to %v", out[30:34])
				}
				meant, good := codeword(packet, forged)
				if !good {
					refused++
					continue
				}
				if accepted++; got != meant {
					t.Fatalf("cookie %#x of port %d led to member %d, it is that of %d", forged, port, got, meant)
				}
				if got == wanted {
					chosen++
				}
			}
			if n := f.reasonsNow()["cookie_invalid"] - invalid; n != uint64(refused) {
				t.Errorf("seed %d: %d cookies were called invalid, %d are", seed, n, refused)
			}
			ideal := tries * float64(forgedServers) / (1 << 15)
			t.Logf("seed %d: %d of %d were accepted, ideal is %.0f; %d reached the chosen server", seed, accepted, tries, ideal, chosen)
			if math.Abs(float64(accepted)-ideal) > 6*math.Sqrt(ideal) || chosen > 15 {
				t.Errorf("seed %d: %d of %d were accepted, want about %.0f; %d reached the chosen server", seed, accepted, tries, ideal, chosen)
			}
		})
	}
}

// codeword tells whose cookie of a segment's flow this is under key 0: by making those of all servers.
func codeword(p wire.Packet, forged uint16) (id uint16, good bool) {
	for id := range uint16(forgedServers) {
		if uint16(cookie.HostBits.Cookie(stampFor(p, testCookies, 0, id))) == forged {
			return id, true
		}
	}
	return 0, false
}
