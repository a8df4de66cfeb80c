package netdev

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"pgregory.net/rapid"
)

// twin is a fake kernel with a few routes, devices and neighbours.
type twin struct {
	table  map[netip.Prefix]hop
	device map[int]netlink.Link
	near   map[neighbour]link
	asked  []netip.Addr
	kept   map[neighbour]int
}

func newTwin() *twin {
	return &twin{table: map[netip.Prefix]hop{}, device: map[int]netlink.Link{}, near: map[neighbour]link{}, kept: map[neighbour]int{}}
}

func (k *twin) links() map[int]netlink.Link { return maps.Clone(k.device) }

func (k *twin) neighbours() (map[neighbour]link, error) { return maps.Clone(k.near), nil }

func (k *twin) keep(n neighbour) { k.kept[n]++ }

func (k *twin) routes(n int, to func(int) netip.Addr, _ map[int]netlink.Link, found func(int, hop)) error {
	// Responses arrive in any order.
	for i := n - 1; i >= 0; i-- {
		k.asked = append(k.asked, to(i))
		found(i, k.route(to(i)))
	}
	return nil
}

// route returns the hop of the longest prefix.
func (k *twin) route(to netip.Addr) (best hop) {
	bits := -1
	for p, h := range k.table {
		if p.Contains(to) && p.Bits() > bits {
			best, bits = h, p.Bits()
		}
	}
	return best
}

// naive computes the next hop of one destination without caches.
func (k *twin) naive(to netip.Addr) NextHop {
	h := k.route(to)
	if h == (hop{}) {
		return NextHop{}
	}
	next := neighbour{h.ifindex, h.gateway}
	if !h.gateway.IsValid() {
		next.address = to
	}
	device, there := k.device[h.ifindex]
	if !there {
		return NextHop{Ifindex: h.ifindex, MTU: h.mtu}
	}
	n := k.near[next]
	return NextHop{MAC: n.mac, Ifindex: h.ifindex, MTU: h.mtu, Source: h.source, Own: [6]byte(device.Attrs().HardwareAddr), Resolved: n.resolved}
}

// TestSharedWaysAreThoseOfEachDestination compares with a fake kernel without sharing, while
// destinations, routes, neighbours and devices change.
func TestSharedWaysAreThoseOfEachDestination(t *testing.T) {
	var all []netip.Addr
	for i := range byte(24) {
		all = append(all, netip.AddrFrom4([4]byte{10, 0, i / 8, i % 8}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%d:%d", i/8, i%8)))
	}
	prefixes := []netip.Prefix{netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("::/0"), netip.MustParsePrefix("0.0.0.0/0")}
	for _, a := range all {
		prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()), netip.PrefixFrom(a, a.BitLen()-2).Masked(), netip.PrefixFrom(a, a.BitLen()-8).Masked())
	}
	rapid.Check(t, func(t *rapid.T) {
		k := newTwin()
		h := hopTable{kernel: k}
		old, want := stale{all: true}, []netip.Addr(nil)
		address := rapid.SampledFrom(all)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				switch rapid.IntRange(0, 4).Draw(t, "change") {
				case 0:
					want = inOrder(rapid.SliceOfN(address, 0, 30).Draw(t, "want"))
				case 1:
					p := rapid.SampledFrom(prefixes).Draw(t, "prefix")
					x := hop{ifindex: rapid.IntRange(1, 3).Draw(t, "device"), mtu: rapid.SampledFrom([]int{1400, 1500}).Draw(t, "mtu"), source: address.Draw(t, "source")}
					if rapid.Bool().Draw(t, "far") {
						x.gateway = address.Draw(t, "gateway")
					}
					k.table[p] = x
					old.add(p)
				case 2:
					p := rapid.SampledFrom(prefixes).Draw(t, "gone")
					delete(k.table, p)
					old.add(p)
				case 3:
					n := neighbour{rapid.IntRange(1, 3).Draw(t, "device"), address.Draw(t, "neighbour")}
					k.near[n] = link{mac: [6]byte{rapid.Byte().Draw(t, "mac")}, resolved: rapid.Bool().Draw(t, "resolved"), kept: rapid.Bool().Draw(t, "kept")}
				case 4:
					i := rapid.IntRange(1, 3).Draw(t, "device")
					if k.device[i] == nil || rapid.Bool().Draw(t, "stays") {
						k.device[i] = &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: i, HardwareAddr: []byte{2, 0, 0, 0, 0, rapid.Byte().Draw(t, "own")}}}
					} else {
						delete(k.device, i)
					}
					old = stale{all: true}
				}
			}
			clear(k.kept)
			got, err := h.read(want, old)
			if err != nil {
				t.Fatal(err)
			}
			old = stale{}
			naive, needed := map[netip.Addr]NextHop{}, map[neighbour]int{}
			for _, to := range want {
				naive[to] = k.naive(to)
				if r := k.route(to); r != (hop{}) {
					n := neighbour{r.ifindex, r.gateway}
					if !r.gateway.IsValid() {
						n.address = to
					}
					if !k.near[n].kept {
						needed[n] = 1
					}
				}
			}
			if !maps.Equal(got.Map(), naive) || !got.equal(WaysOf(naive)) || got.Len() != len(naive) {
				t.Fatalf("got  %v\nwant %v", got.Map(), naive)
			}
			if !maps.Equal(k.kept, needed) {
				t.Fatalf("neighbours that are to be resolved: got %v, want %v", k.kept, needed)
			}
			for to, which := range got.Each() {
				if hop, ok := got.To(to); !ok || hop != naive[to] || got.Hops()[which] != hop {
					t.Fatalf("to %v: %v, %v", to, hop, ok)
				}
			}
			for _, a := range all {
				if _, ok := got.To(a); ok != slices.Contains(want, a) {
					t.Fatalf("%v is a destination: %v", a, ok)
				}
			}
		}
	})
}

// TestOnlyWhatIsStaleIsLookedUp: a new server among many costs the lookup of one route, a changed
// route those of its prefix.
func TestOnlyWhatIsStaleIsLookedUp(t *testing.T) {
	a, b, nowhere := netip.MustParseAddr("10.20.1.11"), netip.MustParseAddr("10.20.2.11"), netip.MustParseAddr("192.0.2.1")
	k := newTwin()
	k.table[netip.MustParsePrefix("10.0.0.0/8")] = hop{ifindex: 1}
	h := hopTable{kernel: k}
	few := []netip.Addr{a, b, nowhere}
	within := func(p string) stale { return stale{within: []netip.Prefix{netip.MustParsePrefix(p)}} }
	for i, c := range []struct {
		want []netip.Addr
		old  stale
		asks []netip.Addr
	}{
		{[]netip.Addr{a, nowhere}, stale{all: true}, []netip.Addr{a, nowhere}},
		{few, stale{}, []netip.Addr{b}},
		{few, stale{}, nil},
		{few, within("10.20.2.0/24"), []netip.Addr{b}},
		{few, within("::/0"), nil},
		{few, within("0.0.0.0/0"), few},
		{[]netip.Addr{b}, stale{}, nil},
		{[]netip.Addr{b}, stale{all: true}, []netip.Addr{b}},
		{[]netip.Addr{a, b}, stale{}, []netip.Addr{a}},
	} {
		k.asked = nil
		if _, err := h.read(c.want, c.old); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(k.asked, netip.Addr.Compare)
		if !slices.Equal(k.asked, c.asks) {
			t.Errorf("step %d: asked for %v, not %v", i, k.asked, c.asks)
		}
	}
}

// TestRoutesAreThoseOfTheLibrary compares the lookup of many routes with single lookups, with
// rules, more specific routes and both families.
func TestRoutesAreThoseOfTheLibrary(t *testing.T) {
	if !ownNamespace(t) {
		return
	}
	neighbourNamespace(t)
	for _, line := range []string{
		"link set lo up",
		"route add 10.20.0.0/16 via 10.0.0.2 mtu 1400", "route add 10.20.3.0/24 via 10.0.0.3", "route add 10.20.4.0/24 dev up0",
		"route add blackhole 10.20.5.0/24", "route add unreachable 10.20.6.0/24", "route add 10.21.0.0/16 via inet6 2001:db8::2 dev up0",
		"addr add 10.0.1.1/32 dev up0", "route add 10.22.0.0/16 via 10.0.0.2 src 10.0.1.1",
		"route add 10.20.7.0/24 via 10.0.0.3 table 77", "rule add to 10.20.7.128/25 table 77",
		"route add 2001:db8:20::/48 via 2001:db8::2", "route add 2001:db8:20:1::/64 dev up0", "route add unreachable 2001:db8:20:2::/64",
	} {
		ip(t, "", line)
	}
	var all []netip.Addr
	for i := range byte(10) {
		for _, last := range []byte{1, 200} {
			all = append(all, netip.AddrFrom4([4]byte{10, 20, i, last}), netip.MustParseAddr(fmt.Sprintf("2001:db8:20:%d::%d", i, last)))
		}
	}
	for _, s := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.21.0.1", "10.22.0.1", "127.0.0.1", "192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db8::7", "2001:db9::1", "::1"} {
		all = append(all, netip.MustParseAddr(s))
	}
	for len(all) < 3*lookups {
		all = append(all, all...)
	}
	s, err := openRouteSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	links := system{}.links()
	got, n := make([]hop, len(all)), 0
	err = s.routes(len(all), func(i int) netip.Addr { return all[i] }, links, func(i int, h hop) { got[i] = h; n++ })
	if err != nil || n != len(all) {
		t.Fatalf("%d of %d answers, %v", n, len(all), err)
	}
	ways := 0
	for i, to := range all {
		want := hopByLibrary(to, links)
		if got[i] != want {
			t.Errorf("to %v: got %+v, want %+v", to, got[i], want)
		}
		if want != (hop{}) {
			ways++
		}
	}
	if ways == 0 || ways == len(all) {
		t.Errorf("%d of %d have a way", ways, len(all))
	}
}

// hopByLibrary looks up one route.
func hopByLibrary(to netip.Addr, links map[int]netlink.Link) hop {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != 1 {
		return hop{}
	}
	r := routes[0]
	h := hop{ifindex: r.LinkIndex, mtu: links[r.LinkIndex].Attrs().MTU}
	if r.MTU > 0 {
		h.mtu = min(h.mtu, r.MTU)
	}
	h.source, _ = netip.AddrFromSlice(r.Src)
	h.gateway, _ = netip.AddrFromSlice(r.Gw)
	if via, ok := r.Via.(*netlink.Via); ok {
		h.gateway, _ = netip.AddrFromSlice(via.Addr)
	}
	h.source, h.gateway = h.source.Unmap(), h.gateway.Unmap()
	return h
}

// BenchmarkWays looks up 140,000 destinations behind one gateway in one read, and reports the
// memory for each.
func BenchmarkWays(b *testing.B) {
	const n = 140_000
	ns := fmt.Sprintf("netdev-b%d", b.N)
	if err := CreateNamespace(ns); err != nil {
		b.Fatal(err)
	}
	defer DeleteNamespace(ns)
	here, err := OpenNamespace(ns)
	if err != nil {
		b.Fatal(err)
	}
	defer here.Close()
	err = AddVeth(VethEnd{Namespace: here, Name: "up0"}, VethEnd{Namespace: here, Name: "down0"}, 1500)
	if err != nil {
		b.Fatal(err)
	}
	gateway := netip.MustParseAddr("10.0.0.2")
	for _, err := range []error{
		here.SetUp("up0", true), here.SetUp("down0", true), here.AddAddress("up0", netip.MustParsePrefix("10.0.0.1/24")),
		here.AddRoute(Route{Destination: netip.MustParsePrefix("10.32.0.0/11"), Via: gateway, Device: "up0"}),
	} {
		if err != nil {
			b.Fatal(err)
		}
	}
	want := make([]netip.Addr, 0, n)
	for a := netip.MustParseAddr("10.32.0.0"); len(want) < n; a = a.Next() {
		want = append(want, a)
	}
	err = In(ns, func() error {
		s, err := openRouteSocket()
		if err != nil {
			return err
		}
		defer s.close()
		var w Ways
		before := heap()
		var h *hopTable
		for b.Loop() {
			h = &hopTable{kernel: system{s}}
			if w, err = h.read(want, stale{all: true}); err != nil {
				return err
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/way")
		b.ReportMetric(float64(heap()-before)/n, "heap-B/way")
		if w.Len() != n || len(w.Hops()) != 1 || len(h.hops) != 2 {
			b.Errorf("%d ways by %d hops", w.Len(), len(w.Hops()))
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// heap returns the heap size after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
