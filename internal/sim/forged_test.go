package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
)

// The counts of Shunt's cookies follow from the map modulo a prime: of all cookies of a connection,
// exactly one leads to each server.
func TestForgedOdds(t *testing.T) {
	const seed, tries = 3, 60_000
	rows := PlayForged(seed, []int{10, 1000}, tries)
	if len(rows) != 2*len(ForgedSchemes)*len(Forgeries) {
		t.Fatalf("%d rows", len(rows))
	}
	for _, r := range rows {
		n := float64(r.Servers)
		accepted, chosen := n/(1<<15), 1/float64(1<<15)
		slack := 6.0 // deviations
		if r.Scheme == Published || r.Scheme == PublishedExact {
			table := 256.0
			for table < n {
				table *= 2
			}
			if r.Scheme == PublishedExact {
				table = 1 << 16
			}
			accepted, chosen = n/table, 1/table
			if r.Forgery == FlipTo {
				accepted, chosen = 1, 1
			}
		}
		within := func(what string, got int, want float64) {
			if d := math.Sqrt(tries*want*(1-want)) + 1; math.Abs(float64(got)-tries*want) > slack*d {
				t.Errorf("seed %d, %s, %s, %d servers: %d of %d are %s, want %.0f", seed, r.Scheme, r.Forgery, r.Servers, got, tries, what, tries*want)
			}
		}
		if r.Scheme == QUICLB || r.Scheme == PlainCID {
			accepted, chosen = n/(1<<cid.MemberBits), 1/float64(1<<cid.MemberBits)
			if r.Forgery == Replay || r.Forgery == FlipTo && r.Scheme == PlainCID {
				accepted, chosen = 1, 1
			}
		}
		switch {
		case r.Scheme == PlainCID && r.Forgery == FlipOne:
			// Of 128 bits, 116 are not part of the id. The server to which each of the 12 others
			// leads is certain.
			if r.Chosen != r.Accepted || r.Accepted < tries*116/128 {
				t.Errorf("%+v: a changed bit leads elsewhere", r)
			}
		case (r.Scheme == Published || r.Scheme == PublishedExact) && r.Forgery == FlipOne:
			// The server to which a bit leads is certain if the bit leads to a server at all. Most
			// bits that make numbers below the number of servers do.
			if least := 0.8 * tries * math.Floor(math.Log2(n)) / 16; r.Chosen != r.Accepted || float64(r.Accepted) < least {
				t.Errorf("%+v: a changed bit leads elsewhere", r)
			}
		default:
			within("accepted", r.Accepted, accepted)
			within("at the chosen server", r.Chosen, chosen)
		}
	}
	if again := PlayForged(seed, []int{10, 1000}, tries); !slices.Equal(rows, again) {
		t.Error("the same seed gave other rows")
	}
}

// Of one connection's 2^15 cookies each server has one, whatever the connection.
func TestEveryServerHasOneCookie(t *testing.T) {
	r, s := rand.New(rand.NewPCG(1, 1)), schemeOf(Cookies, 100)
	for range 20 {
		f := Flow{Client: randomClient(r)}
		led := map[uint16]int{}
		for c := range uint16(1 << 15) {
			forged := tokenOf(c)
			if id, ok := s.read(&f, &forged); ok && id < 100 {
				led[id]++
				if minted := s.mint(&f, id, r); minted.cookie() != c {
					t.Fatalf("cookie %#x leads to %d, whose cookie is %#x", c, id, minted.cookie())
				}
			}
		}
		if len(led) != 100 {
			t.Errorf("%s: %d servers have cookies", f.Client, len(led))
		}
	}
	if cookie.Bits != publishedBits {
		t.Errorf("cookies of %d bits are compared with ones of %d", cookie.Bits, publishedBits)
	}
}

// TestForgedLargestPools checks that cookies distinguish as many servers as an endpoint may have,
// and connection ids 12 bits of them.
func TestForgedLargestPools(t *testing.T) {
	const tries = 2000
	rows := map[Rule]int{}
	for _, r := range PlayForged(1, []int{lb.MaxCIDMembers, lb.MaxCIDMembers + 1, lb.MaxCookieMembers}, tries) {
		rows[r.Scheme]++
		// In the largest pool nearly every cookie is valid.
		if r.Scheme == Cookies && r.Servers == lb.MaxCookieMembers && r.Accepted < tries*99/100 {
			t.Errorf("%+v", r)
		}
	}
	for _, s := range ForgedSchemes {
		want := 3 * len(Forgeries)
		if s == QUICLB || s == PlainCID {
			want = len(Forgeries)
		}
		if rows[s] != want {
			t.Errorf("%s has %d rows, want %d", s, rows[s], want)
		}
	}
}

// TestCookiesAreShuffled checks that the simulated cookies of one connection are no progression, as
// in the product.
func TestCookiesAreShuffled(t *testing.T) {
	const prime = cookie.MaxID + 1
	r, s := rand.New(rand.NewPCG(2, 2)), schemeOf(Cookies, 100)
	for range 20 {
		f := Flow{Client: randomClient(r)}
		steps := map[int]bool{}
		for id := range uint16(6) {
			one, next := s.mint(&f, id, r), s.mint(&f, id+1, r)
			steps[(int(next.cookie())-int(one.cookie())+prime)%prime] = true
		}
		if len(steps) == 1 {
			t.Fatalf("%s: seven cookies have one step between them", f.Client)
		}
	}
}
