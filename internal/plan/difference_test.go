package plan

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// drawEndpoints returns ordered endpoints with newly allocated members.
func drawEndpoints(t *rapid.T) (out []Endpoint) {
	for i := range 6 {
		if rapid.Bool().Draw(t, "there") {
			out = append(out, Endpoint{
				Key:     lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, 0, 113, byte(i / 2)}), Protocol: lb.TCP, Port: uint16(i)},
				Members: []Member{{ID: uint16(rapid.IntRange(0, 2).Draw(t, "id"))}},
				Source:  rapid.SampledFrom([]*lb.SourceAffinity{nil, {Prefix4: 1}, {Prefix4: 2}}).Draw(t, "source"),
			})
		}
	}
	return out
}

// TestDifferencesLeadFromOneToTheOther: applying the differences to the first list gives the
// second, and undoing them gives the first.
func TestDifferencesLeadFromOneToTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := drawEndpoints(t), drawEndpoints(t)
		for i := range after { // some share one array
			if j := slices.IndexFunc(before, func(e Endpoint) bool { return e.Key == after[i].Key }); j >= 0 && rapid.Bool().Draw(t, "same") {
				after[i].Members = before[j].Members
			}
		}
		got := map[lb.EndpointKey]Endpoint{}
		for _, e := range before {
			got[e.Key] = e
		}
		changes := Differences(before, after)
		for i, c := range changes {
			if i > 0 && CompareKeys(changes[i-1].Key(), c.Key()) >= 0 {
				t.Fatalf("%v comes before %v", changes[i-1].Key(), c.Key())
			}
			if was, there := got[c.Key()]; there != (c.Before != nil) || there && !reflect.DeepEqual(was, *c.Before) {
				t.Fatalf("%v was %+v, not %+v", c.Key(), was, c.Before)
			}
			if delete(got, c.Key()); c.After != nil {
				got[c.Key()] = *c.After
			}
			if c.Before != nil && c.After != nil && reflect.DeepEqual(c.Before, c.After) {
				t.Fatalf("%v is the same", c.Key())
			}
			if back := c.Back(); back.Before != c.After || back.After != c.Before || back.Key() != c.Key() {
				t.Fatalf("back: %+v", back)
			}
		}
		for _, e := range after {
			if !reflect.DeepEqual(got[e.Key], e) {
				t.Fatalf("%v is %+v, not %+v", e.Key, got[e.Key], e)
			}
			if of := OfVIP(after, e.Key); len(of) == 0 || !slices.ContainsFunc(of, func(o Endpoint) bool { return o.Key == e.Key }) {
				t.Fatalf("%v is not among those of its VIP: %v", e.Key, of)
			}
		}
		if len(got) != len(after) {
			t.Fatalf("%d endpoints, not %d", len(got), len(after))
		}
		if len(OfVIP(after, lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, 0, 113, 9})})) != 0 {
			t.Fatal("a VIP that is not there has endpoints")
		}
	})
}

// TestEveryFieldOfAnEndpointCounts: endpoints that differ in any field are unequal.
func TestEveryFieldOfAnEndpointCounts(t *testing.T) {
	for i := range reflect.TypeFor[Endpoint]().NumField() {
		var a, b Endpoint
		switch f := reflect.ValueOf(&b).Elem().Field(i); f.Interface().(type) {
		case lb.EndpointKey:
			b.Key.Port = 1
		case []Member:
			b.Members = []Member{{}}
		case lb.Health:
			b.Health.Checks = []lb.Check{{}}
		case *lb.SourceAffinity:
			b.Source = &lb.SourceAffinity{}
		case *lb.QUIC:
			b.QUIC = &lb.QUIC{}
		case lb.Idle:
			b.Idle.Trusted = time.Second
		case string:
			f.SetString("x")
		case bool:
			f.SetBool(true)
		case int64:
			f.SetInt(1)
		default:
			f.SetUint(1)
		}
		if a.Equal(&b) || b.Equal(&a) {
			t.Errorf("%s does not count", reflect.TypeFor[Endpoint]().Field(i).Name)
		}
	}
}

// TestServiceDifferences: added, removed and changed services are reported in order, and a
// difference in any field counts.
func TestServiceDifferences(t *testing.T) {
	vip := []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	any4 := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	plain := Service{Name: "b"}
	for i, other := range []Service{
		{Name: "b", VIPs: vip}, {Name: "b", Limits: lb.Limits{Ping: 1}}, {Name: "b", Sources: lb.Sources{Allow: any4}},
		{Name: "b", Sources: lb.Sources{Deny: any4}}, {Name: "b", SourcesOf: "x"}, {Name: "b", Outbound: true},
		{Name: "b", Tenant: "x"}, {Name: "b", Created: 1},
	} {
		before, after := []Service{{Name: "a"}, plain, {Name: "c", VIPs: vip}}, []Service{other, {Name: "c", VIPs: slices.Clone(vip)}, {Name: "d"}}
		got := ServiceDifferences(before, after)
		want := []ServiceChange{{&before[0], nil}, {&before[1], &after[0]}, {nil, &after[2]}}
		if !slices.Equal(got, want) {
			t.Errorf("%d: %+v, not %+v", i, got, want)
		}
	}
	if n := reflect.TypeFor[Service]().NumField(); n != 8 {
		t.Errorf("a service has %d fields: are all compared?", n)
	}
}

// TestOrder: an ordered list is not copied, an unordered one is sorted, and duplicates are an
// error.
func TestOrder(t *testing.T) {
	of := func(ports ...uint16) (out []Endpoint) {
		for _, p := range ports {
			out = append(out, Endpoint{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.1"), Protocol: lb.TCP, Port: p}})
		}
		return out
	}
	in := of(1, 2, 3)
	if got, err := Order(in); err != nil || !SameSlice(got, in) {
		t.Errorf("ordered: %v, %v", got, err)
	}
	in = of(2, 3, 1)
	if got, err := Order(in); err != nil || !reflect.DeepEqual(got, of(1, 2, 3)) || in[0].Key.Port != 2 {
		t.Errorf("not ordered: %v, %v", got, err)
	}
	if _, err := Order(of(2, 1, 2)); err == nil || err.Error() != "endpoint 0/203.0.113.1/tcp/2: given twice" {
		t.Errorf("twice: %v", err)
	}
}
