package mux

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// fullWorld is an agent with the real tables.
type fullWorld struct {
	t       *testing.T
	tables  *dataplane.Mux
	prober  *prober
	speaker *speaker
	clock   *clock.Fake
	agent   *Agent
	run     string
}

func newFullWorld(t *testing.T, limits dataplane.MuxLimits) *fullWorld {
	t.Helper()
	tables, err := dataplane.OpenMux(dataplane.MuxOptions{Address: [6]byte{2, 0, 0, 0, 0, 1}, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tables.Close() })
	w := &fullWorld{t: t, tables: tables, prober: &prober{}, speaker: &speaker{journal: &journal{}}, clock: clock.NewFake(time.Unix(1000, 0)), run: t.TempDir()}
	w.restart()
	return w
}

func (w *fullWorld) restart() {
	w.t.Helper()
	var err error
	w.agent, err = New(Options{
		Tables: w.tables, Ring: BuildRing, Prober: w.prober, Hops: &hops{}, Speaker: w.speaker, Clock: w.clock,
		Ensure: func(context.Context) (bool, error) { return false, nil }, RunDir: w.run,
		ReadFile: func(string) ([]byte, error) { return []byte("secret\n"), nil },
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// apply applies a plan, lets all checks succeed and synchronizes the speaker.
func (w *fullWorld) apply(p plan.Plan) {
	w.t.Helper()
	if err := w.agent.Apply(context.Background(), p); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

func (w *fullWorld) settle() {
	for _, target := range slices.Clone(w.prober.targets) {
		for range 2 {
			w.agent.Probed([]probe.Result{result(target, true)})
		}
	}
	w.agent.Speak(context.Background())
}

// routes returns the announced VIPs.
func (w *fullWorld) routes() (out []string) {
	for _, r := range w.speaker.State().Routes {
		out = append(out, r.Prefix.Addr().String())
	}
	slices.Sort(out)
	return out
}

// withheld returns the VIPs that the status reports as withheld, with the prefix "~" if they are
// held.
func (w *fullWorld) withheld(table string) (out []string) {
	w.t.Helper()
	for _, v := range w.agent.Status().GetWithheld() {
		name := v.GetVip()
		if v.GetHeld() {
			name = "~" + name
		}
		if v.GetTable() != table || v.GetTenant() != "evil" || !strings.HasPrefix(v.GetService(), "evil") {
			w.t.Errorf("%v is withheld, want services of tenant evil for table %s", v, table)
		}
		out = append(out, name)
	}
	return out
}

// forwards returns the members that packets of 64 flows to a VIP go to.
func (w *fullWorld) forwards(vip string, protocol lb.Protocol, port uint16) (members []uint16) {
	w.t.Helper()
	seen := map[uint16]bool{}
	for i := range uint16(64) {
		got, err := w.tables.Trace(dataplane.Packet{
			Client: netip.MustParseAddr("198.51.100.1"), VIP: netip.MustParseAddr(vip), Protocol: protocol, ClientPort: 1000 + i, Port: port,
		})
		if err != nil {
			w.t.Fatal(err)
		}
		if got.Verdict == "no_vip" || got.Verdict == "no_endpoint" || !got.Endpoint.VIP.IsValid() {
			return nil
		}
		seen[got.Member] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// tenantVIP is a VIP with a service of its own.
type tenantVIP struct {
	tenant    string
	created   int64
	vip       string
	endpoints []plan.Endpoint
}

// simple returns a TCP endpoint with members of these ids.
func simple(port uint16, ids ...int) plan.Endpoint {
	e := planOf([]string{"203.0.113.1"}).Endpoints[0]
	e.Key.Port = port
	for _, id := range ids {
		a := netip.AddrFrom4([4]byte{10, 20, byte(id >> 8), byte(id)})
		e.Members = append(e.Members, plan.Member{ID: uint16(id), DIP: a, Port: 8080, Weight: 1, Outer: a})
	}
	return e
}

func quicOn(port uint16, ids ...int) plan.Endpoint {
	e := simple(port, ids...)
	e.Key.Protocol, e.QUIC, e.Affinity = lb.UDP, &lb.QUIC{Format: lb.QUICMvfst}, lb.AffinityCookie
	return e
}

// tenantPlan returns a plan of these VIPs.
func tenantPlan(vips ...tenantVIP) plan.Plan {
	p := planOf(nil)
	p.TunnelSources = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}
	for _, v := range vips {
		name := fmt.Sprintf("%s-%d", v.tenant, v.created)
		addr := netip.MustParseAddr(v.vip)
		p.Services = append(p.Services, plan.Service{Name: name, Tenant: v.tenant, Created: v.created, VIPs: []netip.Addr{addr}})
		for _, e := range v.endpoints {
			e.Key.VIP, e.Service = addr, name
			p.Endpoints = append(p.Endpoints, e)
		}
	}
	slices.SortFunc(p.Endpoints, func(a, b plan.Endpoint) int { return plan.CompareKeys(a.Key, b.Key) })
	slices.SortFunc(p.Services, plan.CompareServices)
	return p
}

// ids returns the numbers from first to last.
func ids(first, last int) (out []int) {
	for i := first; i <= last; i++ {
		out = append(out, i)
	}
	return out
}

// many returns n endpoints made by make, on ports from 1000 on.
func many(n int, make func(port uint16) plan.Endpoint) (out []plan.Endpoint) {
	for i := range n {
		out = append(out, make(1000+uint16(i)))
	}
	return out
}

// TestTenantThatFillsATableIsWithheld fills each table in turn by one tenant. Later changes and
// drains of others are applied while its VIPs are withheld, and its VIPs are applied when there is
// room.
func TestTenantThatFillsATableIsWithheld(t *testing.T) {
	for table, c := range map[string]struct {
		shrink func(*dataplane.MuxLimits)
		evil   func() []plan.Endpoint // of the VIP that does not fit
	}{
		dataplane.TableQUIC: {func(l *dataplane.MuxLimits) { l.QUIC = 4 }, func() []plan.Endpoint {
			return many(5, func(port uint16) plan.Endpoint { return quicOn(port, 1) })
		}},
		dataplane.TableEndpoints: {func(l *dataplane.MuxLimits) { l.Endpoints = 32 }, func() []plan.Endpoint {
			return many(30, func(port uint16) plan.Endpoint { return simple(port, 1) })
		}},
		dataplane.TableRings: {func(l *dataplane.MuxLimits) { l.RingWords = 1 << 8 }, func() []plan.Endpoint {
			e := simple(1000, 1)
			e.RingCode = 10
			return []plan.Endpoint{e}
		}},
		dataplane.TableMembers: {func(l *dataplane.MuxLimits) { l.Members = 64 }, func() []plan.Endpoint {
			return []plan.Endpoint{simple(1000, 1, 40)}
		}},
		dataplane.TableBackends: {func(l *dataplane.MuxLimits) { l.Backends = 8 }, func() []plan.Endpoint {
			return []plan.Endpoint{simple(1000, ids(50, 57)...)}
		}},
		dataplane.TableNAT: {func(l *dataplane.MuxLimits) { l.NAT = 0 }, func() []plan.Endpoint {
			e := simple(1000, 1)
			e.NAT = true
			return []plan.Endpoint{e}
		}},
		dataplane.TableConnections: {func(l *dataplane.MuxLimits) { l.Connections = 0 }, func() []plan.Endpoint {
			e := quicOn(1000, 1)
			e.Track = true
			return []plan.Endpoint{e}
		}},
		dataplane.TableSources: {func(l *dataplane.MuxLimits) { l.Sources = 64 }, func() []plan.Endpoint {
			return []plan.Endpoint{simple(1000, 1)}
		}},
	} {
		t.Run(table, func(t *testing.T) {
			limits := dataplane.MuxLimits{
				Endpoints: 128, RingWords: 4096, Members: 1024, Backends: 256, Flows: 512, Sources: 8192, SNAT: 4, QUIC: 16, NAT: 256, Connections: 1024, Probes: 256,
			}
			c.shrink(&limits)
			w := newFullWorld(t, limits)
			good := tenantVIP{"good", 1, "203.0.113.1", []plan.Endpoint{simple(80, 1, 2)}}
			evil := tenantVIP{"evil", 2, "203.0.113.2", []plan.Endpoint{simple(80, 1)}}
			flood := tenantVIP{"evil", 3, "203.0.113.3", c.evil()}
			planned := func(vips ...tenantVIP) plan.Plan {
				p := tenantPlan(vips...)
				for i := range p.Services {
					if s := &p.Services[i]; table == dataplane.TableSources && s.Name == "evil-3" {
						for n := range 120 {
							s.Sources.Allow = append(s.Sources.Allow, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(2 * n), 0}), 24))
						}
					}
				}
				return p
			}
			w.apply(planned(good, evil, flood))
			if got, want := w.withheld(table), []string{"203.0.113.3"}; !slices.Equal(got, want) {
				t.Fatalf("withheld %v, want %v", got, want)
			}
			if got, want := w.agent.Status().GetError(), "table "+table+" is full: VIPs 203.0.113.3 of tenants/evil are not served"; got != want {
				t.Errorf("status: %q, want %q", got, want)
			}
			if got, want := w.routes(), []string{"203.0.113.1", "203.0.113.2"}; !slices.Equal(got, want) {
				t.Errorf("announced %v, want %v", got, want)
			}
			if got := w.forwards("203.0.113.1", lb.TCP, 80); !slices.Equal(got, []uint16{1, 2}) {
				t.Errorf("packets of another tenant go to members %v", got)
			}

			// Another tenant drains a server, and adds a VIP.
			good.endpoints = []plan.Endpoint{simple(80, 1, 2)}
			good.endpoints[0].Members[0].Weight, good.endpoints[0].Generation = 0, 2
			added := tenantVIP{"good", 4, "203.0.113.4", []plan.Endpoint{simple(80, 2)}}
			if table == dataplane.TableQUIC {
				added.endpoints = append(added.endpoints, quicOn(443, 2), quicOn(444, 2), quicOn(445, 2), quicOn(446, 2))
			}
			w.apply(planned(good, evil, flood, added))
			if got := w.forwards("203.0.113.1", lb.TCP, 80); !slices.Equal(got, []uint16{2}) {
				t.Errorf("after the drain packets go to members %v", got)
			}
			if got := w.forwards("203.0.113.4", lb.TCP, 80); !slices.Equal(got, []uint16{2}) {
				t.Errorf("packets to the added VIP go to members %v", got)
			}
			if got, want := w.routes(), []string{"203.0.113.1", "203.0.113.2", "203.0.113.4"}; !slices.Equal(got, want) {
				t.Errorf("announced %v, want %v", got, want)
			}

			// The next agent withholds the same.
			w.restart()
			w.apply(planned(good, evil, flood, added))
			if got, want := w.withheld(table), []string{"203.0.113.3"}; !slices.Equal(got, want) {
				t.Fatalf("after a restart withheld %v, want %v", got, want)
			}
			if got, want := w.routes(), []string{"203.0.113.1", "203.0.113.2", "203.0.113.4"}; !slices.Equal(got, want) {
				t.Errorf("after a restart announced %v, want %v", got, want)
			}

			// VIPs that fit are served.
			flood.endpoints = []plan.Endpoint{simple(1000, 2)}
			p := tenantPlan(good, evil, flood)
			w.apply(p)
			for range 3 { // the added VIP's space may not be free yet
				w.agent.forgetLingering(context.Background())
			}
			w.settle()
			if got := w.withheld(table); len(got) > 0 {
				t.Errorf("still withheld: %v", got)
			}
			if got, want := w.routes(), []string{"203.0.113.1", "203.0.113.2", "203.0.113.3"}; !slices.Equal(got, want) {
				t.Errorf("announced %v, want %v", got, want)
			}
			if w.agent.Status().GetError() != "" {
				t.Errorf("status: %s", w.agent.Status().GetError())
			}
		})
	}
}

// smallLimits are the sizes of tables that a few VIPs fill.
var smallLimits = dataplane.MuxLimits{
	Endpoints: 64, RingWords: 1024, Members: 256, Backends: 32, Flows: 512, Sources: 8192, SNAT: 4, QUIC: 4, NAT: 256, Connections: 1024, Probes: 64,
}

// TestVIPThatGrowsKeepsWhatItHas: a served VIP whose change does not fit stays unchanged, and gets
// the change when there is room.
func TestVIPThatGrowsKeepsWhatItHas(t *testing.T) {
	w := newFullWorld(t, smallLimits)
	good := tenantVIP{"good", 1, "203.0.113.1", []plan.Endpoint{simple(80, 1), quicOn(443, 1)}}
	evil := tenantVIP{"evil", 2, "203.0.113.2", []plan.Endpoint{quicOn(443, 1)}}
	w.apply(tenantPlan(good, evil))
	evil.endpoints = append([]plan.Endpoint{quicOn(443, 1, 2)}, many(4, func(port uint16) plan.Endpoint { return quicOn(port, 1) })...)
	good.endpoints[0] = simple(80, 2)
	w.apply(tenantPlan(good, evil))
	if got, want := w.withheld(dataplane.TableQUIC), []string{"~203.0.113.2"}; !slices.Equal(got, want) {
		t.Fatalf("withheld %v, want %v", got, want)
	}
	if got, want := w.routes(), []string{"203.0.113.1", "203.0.113.2"}; !slices.Equal(got, want) {
		t.Errorf("announced %v, want %v", got, want)
	}
	if got := w.forwards("203.0.113.2", lb.UDP, 443); !slices.Equal(got, []uint16{1}) {
		t.Errorf("packets to the VIP that is held go to members %v", got)
	}
	if got := w.forwards("203.0.113.1", lb.TCP, 80); !slices.Equal(got, []uint16{2}) {
		t.Errorf("packets of another tenant go to members %v", got)
	}
	if want := "VIPs 203.0.113.2 of tenants/evil are served as before their last change"; !strings.Contains(w.agent.Status().GetError(), want) {
		t.Errorf("status: %q", w.agent.Status().GetError())
	}
	evil.endpoints = evil.endpoints[:2]
	w.apply(tenantPlan(good, evil))
	if got := w.withheld(dataplane.TableQUIC); len(got) > 0 {
		t.Errorf("still withheld: %v", got)
	}
	if got := w.forwards("203.0.113.2", lb.UDP, 443); !slices.Equal(got, []uint16{1, 2}) {
		t.Errorf("packets to the VIP that grew go to members %v", got)
	}
}

// TestVIPsThatNeedRoomBesideGiveWay: two VIPs that need less in total than before, but do not fit
// in addition to their old state, stay unchanged, and another VIP's change is applied.
func TestVIPsThatNeedRoomBesideGiveWay(t *testing.T) {
	w := newFullWorld(t, smallLimits)
	one := tenantVIP{"evil", 1, "203.0.113.1", []plan.Endpoint{simple(80, 127), simple(81, 3)}}
	two := tenantVIP{"evil", 2, "203.0.113.2", []plan.Endpoint{simple(80, 63), simple(81, 3)}}
	good := tenantVIP{"good", 3, "203.0.113.3", []plan.Endpoint{simple(80, 1)}}
	w.apply(tenantPlan(one, two, good))
	one.endpoints = []plan.Endpoint{simple(80, 3), simple(81, 63)}
	two.endpoints = []plan.Endpoint{simple(80, 3), simple(81, 39)}
	good.endpoints = []plan.Endpoint{simple(80, 2)}
	w.apply(tenantPlan(one, two, good))
	want := []string{"~203.0.113.1", "~203.0.113.2"}
	if got := w.withheld(dataplane.TableMembers); !slices.Equal(got, want) {
		t.Fatalf("withheld %v, want %v", got, want)
	}
	if got := w.forwards("203.0.113.2", lb.TCP, 80); !slices.Equal(got, []uint16{63}) {
		t.Errorf("packets to a VIP that is held go to members %v", got)
	}
	if got := w.forwards("203.0.113.3", lb.TCP, 80); !slices.Equal(got, []uint16{2}) {
		t.Errorf("packets of another tenant go to members %v", got)
	}
}

// TestServedVIPGivesWayToAnMTU: the records of backends with a new MTU do not fit in addition to
// those with the previous one. The plan is applied for all VIPs except one of the tenant that takes
// most.
func TestServedVIPGivesWayToAnMTU(t *testing.T) {
	w := newFullWorld(t, smallLimits)
	old := tenantVIP{"evil", 1, "203.0.113.1", []plan.Endpoint{simple(80, 1, 2, 3, 4)}}
	young := tenantVIP{"evil", 2, "203.0.113.2", []plan.Endpoint{simple(80, ids(5, 16)...)}}
	good := tenantVIP{"good", 3, "203.0.113.3", []plan.Endpoint{simple(80, 17)}}
	p := tenantPlan(old, young, good)
	w.apply(p)
	p.MTU -= 100
	w.apply(p)
	if got, want := w.withheld(dataplane.TableBackends), []string{"203.0.113.2"}; !slices.Equal(got, want) {
		t.Fatalf("withheld %v, want %v", got, want)
	}
	if got, want := w.routes(), []string{"203.0.113.1", "203.0.113.3"}; !slices.Equal(got, want) {
		t.Errorf("announced %v, want %v", got, want)
	}
	w.agent.forgetLingering(context.Background())
	if got := w.withheld(dataplane.TableBackends); len(got) > 0 {
		t.Errorf("still withheld: %v", got)
	}
}

// TestServedVIPsStayWhenOthersCome: neither the tenant that takes most nor the one that takes least
// loses a VIP to one that is added later.
func TestServedVIPsStayWhenOthersCome(t *testing.T) {
	w := newFullWorld(t, smallLimits)
	most := tenantVIP{"good", 9, "203.0.113.1", many(3, func(port uint16) plan.Endpoint { return quicOn(port, 1) })}
	least := tenantVIP{"better", 8, "203.0.113.2", []plan.Endpoint{quicOn(443, 1)}}
	w.apply(tenantPlan(most, least))
	old := tenantVIP{"evil", 1, "203.0.113.3", []plan.Endpoint{quicOn(443, 1)}}
	w.apply(tenantPlan(most, least, old))
	if got, want := w.withheld(dataplane.TableQUIC), []string{"203.0.113.3"}; !slices.Equal(got, want) {
		t.Errorf("withheld %v, want %v", got, want)
	}
	if got, want := w.routes(), []string{"203.0.113.1", "203.0.113.2"}; !slices.Equal(got, want) {
		t.Errorf("announced %v, want %v", got, want)
	}
}

// TestLingerLooksForRoom: the agent retries withheld VIPs by itself.
func TestLingerLooksForRoom(t *testing.T) {
	w := newFullWorld(t, smallLimits)
	flood := tenantVIP{"evil", 2, "203.0.113.2", many(5, func(port uint16) plan.Endpoint { return quicOn(port, 1) })}
	w.apply(tenantPlan(flood))
	next := func() time.Duration {
		w.agent.mu.Lock()
		defer w.agent.mu.Unlock()
		return w.agent.retry.Sub(w.clock.Now())
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if next() != want*time.Second {
			t.Errorf("the next look is in %v, want %d s", next(), want)
		}
		w.agent.forgetLingering(context.Background())
	}
	w.apply(tenantPlan())
	w.agent.mu.Lock()
	defer w.agent.mu.Unlock()
	if !w.agent.retry.IsZero() {
		t.Errorf("nothing is withheld, and the next look is at %v", w.agent.retry)
	}
}

// TestPlansOfAnySizeAreApplied applies random plans to small tables: none is refused, VIPs that are
// not withheld are in the tables as planned, and those that are withheld and not held are not in
// them.
func TestPlansOfAnySizeAreApplied(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("SHUNT_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("SHUNT_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	w := newFullWorld(t, smallLimits)
	vips := map[int]tenantVIP{}
	some := 0
	for step := range 150 {
		for range 1 + r.IntN(3) {
			i := r.IntN(24)
			if r.IntN(3) == 0 {
				delete(vips, i)
				continue
			}
			v := tenantVIP{[]string{"a", "b", "c"}[r.IntN(3)], int64(step), fmt.Sprintf("203.0.113.%d", i), nil}
			if had, ok := vips[i]; ok {
				v.tenant, v.created = had.tenant, had.created
			}
			for port := range uint16(1 + r.IntN(4)) {
				first := r.IntN(40)
				make := simple
				if r.IntN(4) == 0 {
					make = quicOn
				}
				e := make(80+port, ids(first, first+r.IntN(12))...)
				e.RingCode = uint8(6 + r.IntN(4))
				v.endpoints = append(v.endpoints, e)
			}
			vips[i] = v
		}
		var list []tenantVIP
		for _, i := range slices.Sorted(maps.Keys(vips)) {
			list = append(list, vips[i])
		}
		if r.IntN(20) == 0 {
			w.restart()
		}
		p := tenantPlan(list...)
		if err := w.agent.Apply(context.Background(), p); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		withheld := map[string]bool{}
		for _, v := range w.agent.Status().GetWithheld() {
			withheld[v.GetVip()] = v.GetHeld()
			some++
		}
		for _, e := range p.Endpoints {
			held, is := withheld[e.Key.VIP.String()]
			for _, m := range e.Members {
				if _, known := w.tables.Alive(e.Key, m.ID); !held && known == is {
					t.Fatalf("step %d: member %d of %v: in the tables: %v, withheld: %v", step, m.ID, e.Key, known, is)
				}
			}
		}
		for _, route := range w.routes() {
			if held, is := withheld[route]; is && !held {
				t.Fatalf("step %d: %s is announced and withheld", step, route)
			}
		}
	}
	if some == 0 {
		t.Error("nothing was ever withheld")
	}
}

// TestLingeringVIPsOfOthersKeepTheirTime: a VIP of a tenant is in its grace period while another
// tenant's plan is too large. The tables keep the retired VIP, and the other's VIP is served after
// the grace period.
func TestLingeringVIPsOfOthersKeepTheirTime(t *testing.T) {
	for table, c := range map[string]struct {
		shrink     func(*dataplane.MuxLimits)
		good, evil []plan.Endpoint
	}{
		dataplane.TableQUIC: {
			func(l *dataplane.MuxLimits) { l.QUIC = 4 },
			many(2, func(port uint16) plan.Endpoint { return quicOn(port, 1) }), many(2, func(port uint16) plan.Endpoint { return quicOn(port, 1) }),
		},
		dataplane.TableEndpoints: {
			func(l *dataplane.MuxLimits) { l.Endpoints = 32 },
			many(10, func(port uint16) plan.Endpoint { return simple(port, 1) }), many(20, func(port uint16) plan.Endpoint { return simple(port, 1) }),
		},
		dataplane.TableMembers: {
			func(l *dataplane.MuxLimits) { l.Members = 64 }, []plan.Endpoint{simple(1000, 1, 20)}, []plan.Endpoint{simple(1000, 1, 20)},
		},
	} {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the tenant's own: %v", table, own), func(t *testing.T) {
				limits := dataplane.MuxLimits{
					Endpoints: 128, RingWords: 4096, Members: 1024, Backends: 256, Flows: 512, Sources: 8192, SNAT: 4, QUIC: 16, NAT: 256, Connections: 1024, Probes: 256,
				}
				c.shrink(&limits)
				w := newFullWorld(t, limits)
				w.agent.o.Linger = 5 * time.Second
				good := tenantVIP{"good", 1, "203.0.113.1", c.good}
				if own {
					good.tenant = "evil"
				}
				evil := tenantVIP{"evil", 2, "203.0.113.2", []plan.Endpoint{simple(80, 1)}}
				if table == dataplane.TableQUIC {
					evil.endpoints = append(evil.endpoints, quicOn(443, 1))
				}
				flood := tenantVIP{"evil", 3, "203.0.113.3", c.evil}
				key := c.good[0].Key
				serves := func(vip string) bool {
					key.VIP = netip.MustParseAddr(vip)
					_, known := w.tables.Alive(key, 1)
					return known
				}
				w.apply(tenantPlan(good, evil))
				if !serves(good.vip) {
					t.Fatal("the tenant's VIP is not served at first")
				}
				w.apply(tenantPlan(evil, flood))
				// the VIP's old space is not free immediately
				for own && len(w.withheld(table)) > 0 {
					w.clock.Advance(withheldPace)
					w.agent.forgetLingering(context.Background())
				}
				if serves(good.vip) == own || serves(flood.vip) != own {
					t.Errorf("at once: the tables have the VIP that lingers: %v, and the one that came: %v; want %v and %v", serves(good.vip), serves(flood.vip), !own, own)
				}
				if got := w.withheld(table); len(got) == 1 == own {
					t.Errorf("at once: withheld %v", got)
				}
				if got := w.routes(); slices.Contains(got, good.vip) {
					t.Errorf("announced %v, with the VIP that lingers", got)
				}
				w.clock.Advance(withheldPace)
				w.agent.forgetLingering(context.Background())
				if serves(good.vip) == own || serves(flood.vip) != own {
					t.Errorf("before its time: the tables have the VIP that lingers: %v, and the one that came: %v; want %v and %v", serves(good.vip), serves(flood.vip), !own, own)
				}
				w.clock.Advance(5*time.Second - withheldPace)
				for range 3 { // the VIP's old space may not be free yet
					w.agent.forgetLingering(context.Background())
				}
				w.settle()
				if serves(good.vip) || !serves(flood.vip) || len(w.withheld(table)) > 0 {
					t.Errorf("after its time: the tables have the VIP that lingered: %v, and the one that came: %v", serves(good.vip), serves(flood.vip))
				}
			})
		}
	}
}
