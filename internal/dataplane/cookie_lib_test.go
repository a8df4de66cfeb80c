package dataplane

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/cookie"
)

// cookieRun is bpf/unit/cookie.bpf.c, loaded.
type cookieRun struct {
	t       testing.TB
	objects cookieObjects
}

func newCookieRun(t testing.TB) *cookieRun {
	c := &cookieRun{t: t}
	if err := loadCookieObjects(&c.objects, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { c.objects.Close() })
	return c
}

func (c *cookieRun) run(in cookieCookieIn) (out cookieCookieOut) {
	c.t.Helper()
	if err := c.objects.In.Set(in); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.objects.Cookie.Run(runOptions(make([]byte, 14), xdpContext{DataEnd: 14})); err != nil {
		c.t.Fatal(err)
	}
	if err := c.objects.Out.Get(&out); err != nil {
		c.t.Fatal(err)
	}
	return out
}

// TestCookieLibEqualsGo runs bpf/lib/cookie.h and internal/cookie on the same random inputs.
func TestCookieLibEqualsGo(t *testing.T) {
	c, r := newCookieRun(t), seeded(t)
	for range 4000 {
		client, vip := randomAddr(r), randomAddr(r)
		in := cookieCookieIn{
			Sport: uint16(r.Uint32()), Dport: uint16(r.Uint32()),
			Kid: r.Uint32N(2), Id: r.Uint32N(cookie.MaxID + 1), Cookie: r.Uint32N(1 << 16), Time: r.Uint32(), Stamp: r.Uint32(), Shuffled: r.Uint32N(2),
		}
		if r.IntN(8) == 0 {
			in.Time, in.Cookie = in.Time>>16<<16, 0
		}
		in.Key.K0, in.Key.K1 = r.Uint64(), r.Uint64()
		in.ClientHi, in.ClientLo = halves(client)
		var key [16]byte
		binary.LittleEndian.PutUint64(key[:], in.Key.K0)
		binary.LittleEndian.PutUint64(key[8:], in.Key.K1)
		secret := cookie.InOrder
		if in.Shuffled == 1 {
			secret = cookie.SecretOf(key)
		}
		prf := func(client, vip netip.Addr) uint64 {
			return cookie.PRF(key, cookie.Flow{Client: netip.AddrPortFrom(client, in.Sport), VIP: netip.AddrPortFrom(vip, in.Dport)})
		}
		tail := func(a netip.Addr) netip.Addr {
			b := a.As16()
			return netip.AddrFrom4([4]byte(b[12:]))
		}
		id, ok := cookie.Decode(prf(client, vip), uint16(in.Cookie), secret)
		want := cookieCookieOut{
			Prf4: prf(tail(client), tail(vip)), Prf6: prf(client, vip),
			Encoded: uint32(cookie.Encode(prf(client, vip), uint8(in.Kid), uint16(in.Id), secret)), Decoded: uint32(id), Kid: uint32(cookie.KeyID(uint16(in.Cookie))),
			Placed: cookie.HostBits.Place(in.Time, in.Cookie), Unplaced: cookie.HostBits.Unplace(in.Stamp), Of: cookie.HostBits.Cookie(in.Stamp),
		}
		if !ok {
			want.Decoded = 0xffffffff
		}
		if got := c.run(in); got != want {
			t.Fatalf("of %+v\nC  says %+v\nGo says %+v", in, got, want)
		}
	}
}

// TestCookieRoundTrip: what C encodes, C and Go decode.
func TestCookieRoundTrip(t *testing.T) {
	c, r := newCookieRun(t), seeded(t)
	for range 1000 {
		in := cookieCookieIn{Kid: r.Uint32N(2), Id: r.Uint32N(cookie.MaxID + 1)}
		in.Key.K0, in.ClientLo = r.Uint64(), r.Uint64()
		out := c.run(in)
		in.Cookie = out.Encoded
		if again := c.run(in); again.Decoded != in.Id || again.Kid != in.Kid {
			t.Fatalf("id %d, kid %d: cookie %#x reads as id %d, kid %d", in.Id, in.Kid, out.Encoded, again.Decoded, again.Kid)
		}
		if id, ok := cookie.Decode(out.Prf6, uint16(out.Encoded), cookie.InOrder); !ok || uint32(id) != in.Id {
			t.Fatalf("Go reads cookie %#x of id %d as %d, %v", out.Encoded, in.Id, id, ok)
		}
	}
}

// timestampsAt is where TSval of the first timestamps option is, read by the letter of RFC 9293 section 3.1; 0: there is none.
func timestampsAt(options []byte) int {
	for at := 0; at < len(options) && options[at] != 0; {
		if options[at] == 1 {
			at++
			continue
		}
		if at+1 == len(options) || options[at+1] < 2 || at+int(options[at+1]) > len(options) {
			return 0
		}
		if options[at] == 8 && options[at+1] == 10 {
			return at + 2
		}
		at += int(options[at+1])
	}
	return 0
}

// randomOptions are up to 40 bytes of options: mostly whole ones in any order, at any offset, sometimes with a lie in them.
func randomOptions(r *rand.Rand) []byte {
	var b []byte
	kinds := [][]byte{{1}, {1}, {1}, {0}, {2, 4, 5, 180}, {3, 3, 7}, {4, 2}, {5, 10, 1, 2, 3, 4, 5, 6, 7, 8}, {5, 18, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8},
		{8, 10, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88}, {8, 10, 0xa1, 0xb2, 0xc3, 0xd4, 0xe5, 0xf6, 0xa7, 0xb8}, {8, 9, 1, 2, 3, 4, 5, 6, 7}, {8, 2}, {253, 6, 8, 10, 1, 1}, {30, 3, 1}}
	for range r.IntN(8) {
		next := kinds[r.IntN(len(kinds))]
		if len(b)+len(next) > 40 {
			break
		}
		b = append(b, next...)
	}
	if r.IntN(3) == 0 && len(b) > 0 {
		b[r.IntN(len(b))] = byte(r.IntN(20))
	}
	if r.IntN(4) == 0 {
		b = b[:r.IntN(len(b)+1)]
	}
	return b
}

func TestTimestampsAreFound(t *testing.T) {
	c, r := newCookieRun(t), seeded(t)
	found := map[bool]int{}
	for range 6000 {
		options := randomOptions(r)
		var in cookieCookieIn
		in.Options.Len = uint32(copy(in.Options.Bytes[:], options))
		for i := len(options); i < len(in.Options.Bytes); i++ {
			in.Options.Bytes[i] = byte(r.Uint32()) // of the packet's payload
		}
		at, out := timestampsAt(options), c.run(in)
		if int(out.TsvalAt) != at {
			t.Fatalf("in % x TSval is found at %d, want %d", options, out.TsvalAt, at)
		}
		if at > 0 && out.Tsval != binary.BigEndian.Uint32(options[at:]) {
			t.Fatalf("in % x TSval is read as %#x", options, out.Tsval)
		}
		found[at > 0]++
	}
	if found[true] < 1000 || found[false] < 1000 {
		t.Fatalf("a one-sided test: %v", found)
	}
}
