package dataplane

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// unitRun is bpf/unit/mux_lib.bpf.c, loaded.
type unitRun struct {
	t       testing.TB
	objects unitObjects
	rings   []uint64
	members []uint64
}

func newUnitRun(t testing.TB) *unitRun {
	u := &unitRun{t: t}
	if err := loadUnitObjects(&u.objects, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	mem := &muxMemory{}
	for _, err := range []error{mapTable(mem, u.objects.UnitRings, &u.rings), mapTable(mem, u.objects.UnitMembers, &u.members)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		mem.close()
		u.objects.Close()
	})
	return u
}

func (u *unitRun) run(in unitUnitIn) (out unitUnitOut) {
	u.t.Helper()
	if err := u.objects.In.Set(in); err != nil {
		u.t.Fatal(err)
	}
	if _, err := u.objects.Unit.Run(runOptions(make([]byte, 14), xdpContext{DataEnd: 14})); err != nil {
		u.t.Fatal(err)
	}
	if err := u.objects.Out.Get(&out); err != nil {
		u.t.Fatal(err)
	}
	return out
}

// halves are an address as the program loads it.
func halves(a netip.Addr) (hi, lo uint64) {
	b := a.As16()
	return binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])
}

func randomAddr(r *rand.Rand) netip.Addr {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], r.Uint64())
	binary.LittleEndian.PutUint64(b[8:], r.Uint64())
	if b[0] == 0 {
		b[0] = 0x20 // never a mapped address
	}
	return netip.AddrFrom16(b)
}

// TestLibEqualsGo runs bpf/lib and internal/ring on the same random inputs.
func TestLibEqualsGo(t *testing.T) {
	u, r := newUnitRun(t), seeded(t)
	for range 400 {
		code, n := uint8(ring.CodeMin+r.IntN(5)), 1+r.IntN(200)
		first, memberFirst := uint32(r.IntN(100)), uint32(r.IntN(100))
		members := make([]ring.Member, n)
		alive := r.IntN(5) // of 4: from all dead to all alive
		for i := range members {
			members[i] = ring.Member{ID: uint16(i), DIP: randomAddr(r), Port: 80, Weight: uint16(r.IntN(4))}
			u.members[memberFirst+uint32(i)] = memberWord(1, members[i].Weight > 0, r.IntN(4) < alive)
		}
		slots := ring.Build(code, members)
		if slots == nil {
			continue
		}
		copy(slotsOf(u.rings[first:int(first)+len(slots)/slotsPerWord]), slots)
		for range 20 {
			u.compare(r, slots, code, first, memberFirst, n)
		}
	}
}

// compare runs one random flow through both.
func (u *unitRun) compare(r *rand.Rand, slots []uint16, code uint8, first, memberFirst uint32, count int) {
	u.t.Helper()
	src, dst := randomAddr(r), randomAddr(r)
	in := unitUnitIn{
		Ring:  ringWord(ringRef{block{first: first, words: 1}, code}, 0),
		Range: membersWord(block{first: memberFirst}, count),
		Hash:  r.Uint64(), Vni: r.Uint32N(1 << 24), Sport: uint16(r.Uint32()), Dport: uint16(r.Uint32()), Protocol: r.Uint32N(256),
	}
	in.Key.K0, in.Key.K1 = r.Uint64(), r.Uint64()
	in.SrcHi, in.SrcLo = halves(src)
	in.DstHi, in.DstLo = halves(dst)
	out := u.run(in)
	key := ring.Key{K0: in.Key.K0, K1: in.Key.K1}
	flow := func(src, dst netip.Addr) uint64 {
		return ring.FlowHash(key, in.Vni, src, dst, uint8(in.Protocol), in.Sport, in.Dport)
	}
	tail := func(a netip.Addr) netip.Addr {
		b := a.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	if got, want := out.Flow6, flow(src, dst); got != want {
		u.t.Fatalf("IPv6 flow hash of %+v: %#x, Go has %#x", in, got, want)
	}
	if got, want := out.Flow4, flow(tail(src), tail(dst)); got != want {
		u.t.Fatalf("IPv4 flow hash of %+v: %#x, Go has %#x", in, got, want)
	}
	table := func(src, dst netip.Addr) uint64 {
		return ring.TableHash(key, in.Vni, src, dst, uint8(in.Protocol), in.Sport, in.Dport)
	}
	if got, want := out.Table6, table(src, dst); got != want {
		u.t.Fatalf("IPv6 table hash of %+v: %#x, Go has %#x", in, got, want)
	}
	if got, want := out.Table4, table(tail(src), tail(dst)); got != want {
		u.t.Fatalf("IPv4 table hash of %+v: %#x, Go has %#x", in, got, want)
	}
	word := endpointKeyWord(lb.EndpointKey{VNI: in.Vni, Protocol: lb.Protocol(in.Protocol), Port: in.Dport})
	if got, want := out.Endpoint, endpointHash(dst.As16(), word); got != want {
		u.t.Fatalf("endpoint hash of %+v: %#x, Go has %#x", in, got, want)
	}
	want, ok := ring.Choose(slots, code, count, in.Hash, func(id uint16) bool {
		const all = memberAlive | memberChoosable | memberPresent
		return u.members[memberFirst+uint32(id)]&all == all
	})
	if ok != (out.Probes != 0xffffffff) || ok && (uint32(want.Member) != out.Id || uint32(want.Probes) != out.Probes) {
		u.t.Fatalf("walk of %+v: member %d after %d probes, Go has %+v, %v", in, out.Id, out.Probes, want, ok)
	}
}

// TestLimits compares the constants of internal/ring, which imports nothing, with bpf/abi.h.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name string
		have int
		abi  muxLimit
	}{
		{"ring.CodeMin", ring.CodeMin, muxLimitLIMIT_RING_CODE_MIN},
		{"ring.CodeMax", ring.CodeMax, muxLimitLIMIT_RING_CODE_MAX},
		{"ring.FallbackProbes", ring.FallbackProbes, muxLimitLIMIT_FALLBACK_PROBES},
	} {
		if c.have != int(c.abi) {
			t.Errorf("%s is %d, bpf/abi.h has %d", c.name, c.have, c.abi)
		}
	}
}

// TestMmappedTablesAreAligned: a slot of the endpoint table and a bucket of the flow table are a cache line each.
func TestMmappedTablesAreAligned(t *testing.T) {
	f := newMuxFixture(t)
	for name, at := range map[string]uintptr{
		"endpoint": uintptr(unsafe.Pointer(&f.mux.memory.slots[0])),
		"flow":     uintptr(unsafe.Pointer(&f.mux.memory.flows[0])),
	} {
		if at%uintptr(unix.Getpagesize()) != 0 {
			t.Errorf("the %s table begins at %#x", name, at)
		}
	}
}
