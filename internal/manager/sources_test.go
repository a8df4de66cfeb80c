package manager_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store/etcd"
)

// manyPrefixes returns n prefixes, half of them of each family.
func manyPrefixes(n int) []netip.Prefix {
	out := make([]netip.Prefix, 0, n)
	for i := range n / 2 {
		a, b, c := byte(i>>16), byte(i>>8), byte(i)
		out = append(out,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{1 + a, b, c, 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, a, b, c, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 0}), 124))
	}
	return out
}

// TestManySources: the largest list passes the API, the embedded etcd and a node's stream. A change
// of it is one item, and other changes do not send it again.
func TestManySources(t *testing.T) {
	kv, err := etcd.Open(t.Context(), etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kv.Close() })
	r := newRig(t, kv)
	s := web(1, 2)
	s.Sources = &lb.Sources{Deny: manyPrefixes(lb.MaxSources - 2)}
	r.apply(network(), muxNode(1), s)
	mux := r.join("mux1", "mux")
	p := mux.until("the list", func(p plan.Plan) bool { return len(p.Services) == 1 })
	if !slices.Equal(p.Services[0].Sources.Deny, s.Sources.Deny) {
		t.Error("the list is another")
	}
	mux.stop()

	stream := r.raw("mux1", "mux")
	receive(t, stream)
	s.Sources.Allow = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	r.apply(s)
	up := receiveItems(t, stream)
	if keys(up) != "service/web" {
		t.Errorf("a change of the list sends %s", keys(up))
	}
	if n := proto.Size(up); n > 18*lb.MaxSources {
		t.Errorf("%d bytes for %d prefixes", n, lb.MaxSources)
	}
	s.Endpoints[0].Backends[0].Drain = true
	r.apply(s)
	if up := receiveItems(t, stream); keys(up) != "endpoint/0/203.0.113.10/tcp/80" {
		t.Errorf("a change of an endpoint sends %s", keys(up))
	}
	r.stop()
	r.start()
	stream = r.raw("mux1", "mux")
	if up := receive(t, stream); len(up.Upsert) != 4 {
		t.Errorf("after a restart: %s", keys(up))
	}
}

// TestManySharedSources: a policy's list of 100,000 prefixes is in a plan once, however many
// services use it. A change of the list, or of the service that uses it, sends nothing else.
func TestManySharedSources(t *testing.T) {
	const count, services = 100_000, 200
	kv, err := etcd.Open(t.Context(), etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kv.Close() })
	r := newRig(t, kv)
	gold := &lb.Policy{Name: "gold", Sources: &lb.Sources{Deny: manyPrefixes(count)}}
	all := []lb.Object{network(), muxNode(1), gold, &lb.Policy{Name: "unused", Sources: &lb.Sources{Deny: manyPrefixes(10)}}}
	lb.SetDefaults(gold)
	taker := func(i int) *lb.Service {
		s := web(1)
		s.Name, s.Policy, s.VIPs = fmt.Sprintf("s%d", i), "gold", []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}
		return s
	}
	for i := range services {
		all = append(all, taker(i))
	}
	r.apply(all...)
	mux := r.join("mux1", "mux")
	p := mux.until("the services", func(p plan.Plan) bool { return len(p.Services) == services })
	if len(p.Sources) != 1 || !slices.Equal(p.Sources[0].Deny, gold.Sources.Deny) {
		t.Errorf("%d lists in the plan", len(p.Sources))
	}
	mux.stop()

	stream := r.raw("mux1", "mux")
	if n := proto.Size(receive(t, stream)); n > 18*count+services*1000 {
		t.Errorf("the snapshot has %d bytes", n)
	}
	step := func(what, want string, objects ...lb.Object) {
		t.Helper()
		r.apply(objects...)
		if got := keys(receiveItems(t, stream)); got != want {
			t.Errorf("%s sends %q, want %q", what, got, want)
		}
	}
	gold.Sources = &lb.Sources{Deny: gold.Sources.Deny[1:]}
	step("a change of the list", "sources/gold", gold)
	own := taker(7)
	own.Sources = &lb.Sources{}
	step("a service that says who is let in", "service/s7", own)
	gold.Sources = nil
	var want []string
	for i := range services {
		if i != 7 {
			want = append(want, fmt.Sprintf("service/s%d", i))
		}
	}
	slices.Sort(want)
	step("a policy that says nothing any more", strings.Join(want, " ")+" -sources/gold", gold)
}
