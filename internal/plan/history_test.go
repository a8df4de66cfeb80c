package plan

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// build returns the ring of a membership.
func build(m Membership) []uint16 {
	var seats []ring.Seat
	for _, s := range m.Members {
		seats = append(seats, ring.Seat{
			Member: ring.Member{ID: s.ID, DIP: s.Backend.DIP, Port: s.Backend.Port, Weight: s.Weight}, Backup: s.Backup, Down: s.Down,
		})
	}
	return new(ring.Builder).Walked(m.RingCode, seats)
}

// fold folds a history and the current membership.
func fold(history []Membership, now Membership) ring.Folded {
	var rings [][]uint16
	for _, m := range append(slices.Clip(history), now) {
		rings = append(rings, build(m))
	}
	return ring.Fold(rings...)
}

// TestSlowStartsAreShortInHistory: a slow start adds two memberships to the history, and flows that
// began between slow starts find their members as well as with every step in it.
func TestSlowStartsAreShortInHistory(t *testing.T) {
	in := Input{KeyID: 1, Size: ring.SizeCode, Now: epoch, RepairWindow: 24 * time.Hour, SlowStart: 100 * time.Second}
	for n := range 10 {
		in.Wanted = append(in.Wanted, Wanted{Backend: backendN(n), Weight: 1})
	}
	st := EndpointState{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}}
	var all, settled []Membership // all memberships, and those between slow starts
	advance := func() {
		next, err := Advance(st, in)
		if err != nil {
			t.Fatal(err)
		}
		if next.Generation > st.Generation && st.Generation > 0 {
			all = append(all, st.past(in.Now))
		}
		st = next
	}
	advance()
	for round := range 3 {
		settled = append(settled, st.past(in.Now))
		in.Wanted = append(in.Wanted, Wanted{Backend: backendN(10 + round), Weight: 1})
		for advance(); !st.Members[len(st.Members)-1].Warming.IsZero(); advance() {
			in.Now = Due(&st, in)
		}
		if want := 2 * (round + 1); len(st.History) != want {
			t.Fatalf("after %d slow starts %d memberships are remembered, want %d", round+1, len(st.History), want)
		}
	}
	if len(all) != 30 {
		t.Fatalf("%d memberships in all: the test expects ten steps for each", len(all))
	}
	// broken counts the slots whose flows, begun while no member grew (the long ones), do not find
	// their member.
	broken := func(f ring.Folded, began []Membership) (n int) {
		for _, m := range began {
			r := build(m)
			for i, slot := range f.Slots {
				if owner := r[i>>(f.Code-m.RingCode)]; owner != slot.Current() && owner != slot.Former() {
					n++
				}
			}
		}
		return n
	}
	short, whole := fold(st.History, st.Membership), fold(all, st.Membership)
	slots := len(short.Slots) * len(settled)
	t.Logf("of %d: %d broken, %d with every step remembered; of those that began in steps %d and %d of %d", slots, broken(short, settled),
		broken(whole, settled), broken(short, all), broken(whole, all), len(short.Slots)*len(all))
	if broken(short, settled) > broken(whole, settled)+slots/100 {
		t.Errorf("%d broken, %d with every step remembered", broken(short, settled), broken(whole, settled))
	}
	for i := 1; i < len(st.History); i++ {
		if st.History[i].Until.Before(st.History[i-1].Until) {
			t.Errorf("history %d ends at %v, before the one before", i, st.History[i].Until)
		}
	}
}

// TestHistoryIsForgottenInTime: with Due and Advance alone a change stays in the history for the
// window, the generation does not change, and the members that left are in Former until then.
func TestHistoryIsForgottenInTime(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		window := time.Duration(rapid.IntRange(1, 86400).Draw(rt, "window")) * time.Second
		host := netip.MustParseAddr("10.20.1.1")
		in := Input{KeyID: 1, Size: eightPerMember, Now: epoch, RepairWindow: window, Hosts: map[lb.BackendKey]netip.Addr{backendN(0): host, backendN(1): host}}
		in.Wanted = []Wanted{{Backend: backendN(0), Weight: 1}, {Backend: backendN(1), Weight: 1}}
		st, err := Advance(EndpointState{}, in)
		if err != nil {
			rt.Fatal(err)
		}
		if !Due(&st, in).IsZero() {
			rt.Fatalf("something is due at %v", Due(&st, in))
		}
		in.Wanted = in.Wanted[:1]
		if st, err = Advance(st, in); err != nil || len(st.History) != 1 {
			rt.Fatalf("%+v %v", st.History, err)
		}
		former := st.Former()
		if len(former) != 1 || former[0].Backend != backendN(1) || former[0].Host != host {
			rt.Fatalf("former members %+v", former)
		}
		early := in
		early.Now = epoch.Add(window - 1)
		if same, err := Advance(st, early); err != nil || !same.Equal(&st) {
			rt.Fatalf("too early %+v %v", same, err)
		}
		if in.Now = Due(&st, in); !in.Now.Equal(epoch.Add(window)) {
			rt.Fatalf("due at %v", in.Now)
		}
		late, err := Advance(st, in)
		if err != nil || len(late.History) != 0 || late.Equal(&st) || late.Generation != st.Generation || len(late.Former()) != 0 {
			rt.Fatalf("too late %+v %v", late, err)
		}
	})
}

// TestRepairIsOfWhatMoved: hosts get repair data only while something was displaced, with all
// possible owners. Memberships under another key are left out, unless the key was the last change.
func TestRepairIsOfWhatMoved(t *testing.T) {
	ep := &lb.Endpoint{Protocol: lb.TCP, Port: 80, RepairWindow: new(time.Hour)}
	for n := range 3 {
		b := backendN(n)
		ep.Backends = append(ep.Backends, lb.Backend{DIPs: []netip.Addr{b.DIP}, Port: b.Port, Host: netip.MustParseAddr("10.20.1.1").Next(), Weight: 1})
	}
	vip := netip.MustParseAddr("203.0.113.10")
	in := Input{KeyID: 1, Size: eightPerMember, Now: epoch, RepairWindow: time.Hour}
	st := EndpointState{Key: lb.EndpointKey{VIP: vip, Protocol: lb.TCP, Port: 80}}
	step := func() (*Repair, bool) {
		t.Helper()
		in.Wanted, in.Hosts = WantedMembers(ep, vip), HostsOf(ep, vip)
		var err error
		if st, err = Advance(st, in); err != nil {
			t.Fatal(err)
		}
		return MakeRepair(ep, &st, []Key{{ID: 1}, {ID: 2}}, lb.EncapIPIP)
	}
	if r, ok := step(); ok {
		t.Errorf("nothing moved, but hosts hear %+v", r)
	}
	ep.Backends = ep.Backends[:2]
	r, ok := step()
	if !ok || len(r.Targets) != 3 || len(r.Memberships) != 2 || len(r.Memberships[0].Seats) != 3 || r.Targets[2].Host != netip.MustParseAddr("10.20.1.2") {
		t.Errorf("hosts hear %+v %v", r, ok)
	}
	if b := MakeBindings(&lb.Service{Name: "web"}, ep, &st, lb.EncapIPIP); len(b) != 3 {
		t.Errorf("%d bindings, want those of the two members and of the one that left", len(b))
	}
	in.KeyID = 2
	former, _ := hostRingKey([]Key{{ID: 1}, {ID: 2}}, 1, st.Key)
	if r, ok := step(); !ok || !r.Rotated || r.Hash != former || len(r.Memberships) != 1 || len(r.Memberships[0].Seats) != 2 || len(r.Targets) != 3 {
		t.Errorf("after a rotation of the ring key hosts get %+v %v, want the former key with the membership of then", r, ok)
	}
	if _, ok := MakeRepair(ep, &st, []Key{{ID: 2}}, lb.EncapIPIP); ok {
		t.Error("without the former key there is nothing to find former owners by")
	}
	ep.Backends = ep.Backends[:1]
	if r, ok := step(); !ok || r.Rotated || r.Hash.ID != 2 || len(r.Memberships) != 2 {
		t.Errorf("after another change hosts get %+v %v, want the present key with the two memberships under it", r, ok)
	}
	ep.RepairWindow = new(time.Duration(0))
	in.RepairWindow = 0
	if _, ok := step(); ok || len(st.History) > 0 {
		t.Errorf("repair is off, but %+v is remembered", st.History)
	}
}

// TestCookiesAreAlwaysRepaired: hosts get all members of an endpoint whose packets name them,
// whether or not something was displaced.
func TestCookiesAreAlwaysRepaired(t *testing.T) {
	vip := netip.MustParseAddr("203.0.113.10")
	for _, c := range []struct {
		name   string
		change func(ep *lb.Endpoint)
		want   bool
	}{
		{"stamped", func(*lb.Endpoint) {}, true},
		{"by flow table", func(ep *lb.Endpoint) { ep.Affinity, ep.Cookie = lb.AffinityFlow, lb.Cookie{} }, false},
		{"in the server's clock", func(ep *lb.Endpoint) { ep.Cookie.Form = lb.CookieCO }, false},
		{"repair is off", func(ep *lb.Endpoint) { ep.RepairWindow = new(time.Duration(0)) }, false},
	} {
		ep := &lb.Endpoint{Protocol: lb.TCP, Port: 80, Affinity: lb.AffinityCookie, Cookie: lb.Cookie{Form: lb.CookieEVC}, RepairWindow: new(time.Hour)}
		for n := range 3 {
			b := backendN(n)
			ep.Backends = append(ep.Backends, lb.Backend{DIPs: []netip.Addr{b.DIP}, Port: b.Port, Host: netip.MustParseAddr("10.20.1.1").Next(), Weight: 1})
		}
		c.change(ep)
		in := Input{KeyID: 1, Size: eightPerMember, Now: epoch, RepairWindow: ep.Repairs(), Wanted: WantedMembers(ep, vip), Hosts: HostsOf(ep, vip)}
		st, err := Advance(EndpointState{Key: lb.EndpointKey{VIP: vip, Protocol: lb.TCP, Port: 80}}, in)
		if err != nil {
			t.Fatal(err)
		}
		r, ok := MakeRepair(ep, &st, []Key{{ID: 1}}, lb.EncapIPIP)
		if ok != c.want || ok && (len(r.Memberships) != 1 || len(r.Targets) != 3) {
			t.Errorf("%s: hosts hear %+v, %v", c.name, r, ok)
		}
	}
}

// TestBindingsAreToldApart: a backend that changes its port leaves no binding with the same tunnel,
// because its host would refuse it together with the plan. With GUE the tunnel names the member,
// and all are bound. After any number of changes the current one is bound.
func TestBindingsAreToldApart(t *testing.T) {
	vip, host := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("10.20.1.1")
	dip := netip.MustParseAddr("10.20.1.11")
	for encap, want := range map[string][]uint16{lb.EncapIPIP: {8082}, lb.EncapGUE: {8082, 8081, 8080}} {
		ep := &lb.Endpoint{Protocol: lb.TCP, Port: 80, RepairWindow: new(time.Hour)}
		in := Input{KeyID: 1, Size: eightPerMember, Now: epoch, RepairWindow: time.Hour}
		st := EndpointState{Key: lb.EndpointKey{VIP: vip, Protocol: lb.TCP, Port: 80}}
		for port := uint16(8080); port <= 8082; port++ {
			ep.Backends = []lb.Backend{{DIPs: []netip.Addr{dip}, Port: port, Host: host, Weight: 1}}
			in.Wanted, in.Hosts, in.Now = WantedMembers(ep, vip), HostsOf(ep, vip), in.Now.Add(time.Second)
			var err error
			if st, err = Advance(st, in); err != nil {
				t.Fatal(err)
			}
		}
		var ports []uint16
		for _, b := range MakeBindings(&lb.Service{Name: "web"}, ep, &st, encap) {
			ports = append(ports, b.Binding.DIPPort)
		}
		if !slices.Equal(ports, want) {
			t.Errorf("%s: ports %v are bound, want %v", encap, ports, want)
		}
	}
}

// TestTheDeadLeaveAsDead: hosts do not forward to a removed backend that muxes reported dead or
// that was down; they do to one that left alive.
func TestTheDeadLeaveAsDead(t *testing.T) {
	host := netip.MustParseAddr("10.20.1.1")
	for name, c := range map[string]struct {
		said   Hearsay
		down   bool
		fallen bool
	}{
		"alive": {HeardAlive, false, false}, "dead": {HeardDead, false, true}, "not spoken of": {HeardNothing, false, false},
		"down, and not spoken of since": {HeardNothing, true, true},
	} {
		window := time.Hour
		ep := &lb.Endpoint{RepairWindow: &window}
		in := Input{KeyID: 1, Size: eightPerMember, Now: epoch, RepairWindow: window, Hosts: map[lb.BackendKey]netip.Addr{}}
		for n := range 3 {
			in.Wanted = append(in.Wanted, Wanted{Backend: backendN(n), Weight: 1})
			in.Hosts[backendN(n)] = host
			ep.Backends = append(ep.Backends, lb.Backend{DIPs: []netip.Addr{backendN(n).DIP}, Port: backendN(n).Port, Host: host})
		}
		st, err := Advance(EndpointState{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}}, in)
		if err != nil {
			t.Fatal(err)
		}
		st.Members[2].Down = c.down
		in.Heard = func(id uint16) Heard {
			if id == 2 {
				return Heard{Health: c.said}
			}
			return Heard{Health: HeardAlive}
		}
		in.Wanted, ep.Backends = in.Wanted[:2], ep.Backends[:2]
		if st, err = Advance(st, in); err != nil {
			t.Fatal(err)
		}
		// Later changes do not revert that.
		in.Wanted[0].Weight = 2
		if st, err = Advance(st, in); err != nil {
			t.Fatal(err)
		}
		r, ok := MakeRepair(ep, &st, []Key{{ID: 1}}, lb.EncapIPIP)
		if !ok || len(r.Targets) != 3 || r.Targets[2].Fallen != c.fallen || r.Targets[0].Fallen || r.Targets[1].Fallen {
			t.Errorf("%s: targets %+v", name, r.Targets)
		}
	}
}
