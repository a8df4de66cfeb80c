package plan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
)

// TestYoungEndpoints: an endpoint with members is young after its change to affinity cookie, for
// the idle time of flows and at least a day; a new endpoint is not.
func TestYoungEndpoints(t *testing.T) {
	in := Input{KeyID: 1, Size: eightPerMember, Now: epoch, Wanted: []Wanted{{Backend: backendN(1), Weight: 1}}, Idle: time.Hour}
	advance := func(st EndpointState, cookies bool, after time.Duration) EndpointState {
		t.Helper()
		in.Cookies, in.Now = cookies, in.Now.Add(after)
		next, err := Advance(st, in)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	none := EndpointState{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}}
	if st := advance(none, true, 0); !st.Young.IsZero() {
		t.Errorf("a new endpoint is young until %v", st.Young)
	}
	for _, idle := range []time.Duration{time.Hour, 30 * time.Hour} {
		in.Idle = idle
		st := advance(advance(none, false, 0), true, time.Minute)
		until := in.Now.Add(max(idle, 24*time.Hour))
		if !st.Young.Equal(until) || !Due(&st, in).Equal(until) {
			t.Errorf("idle %v: young until %v, due %v, want %v", idle, st.Young, Due(&st, in), until)
		}
		if st = advance(st, true, until.Sub(in.Now)-1); !st.Young.Equal(until) {
			t.Errorf("a moment before: young until %v", st.Young)
		}
		if before := st; !advance(before, false, 0).Young.IsZero() {
			t.Error("without cookies it is young")
		}
		if st = advance(st, true, 1); !st.Young.IsZero() || !Due(&st, in).IsZero() {
			t.Errorf("its time is over: young until %v, due %v", st.Young, Due(&st, in))
		}
	}
	ep := lb.Endpoint{Affinity: lb.AffinityCookie, Protocol: lb.TCP}
	svc := lb.Service{Name: "web"}
	st := advance(advance(none, false, 0), true, 0)
	if got := MakeEndpoint(&svc, &ep, &st, nil, lb.EncapIPIP); !got.FlowsFirst || !got.KeepDead {
		t.Errorf("its plan: %+v", got)
	}
	st.Young, ep.Unhealthy = time.Time{}, lb.UnhealthyMove
	if got := MakeEndpoint(&svc, &ep, &st, nil, lb.EncapIPIP); got.FlowsFirst || got.KeepDead {
		t.Errorf("its plan later, with unhealthy move: %+v", got)
	}
}

// TestFadingEndpoints: after an endpoint loses its cookies, muxes still read them, after the flow
// table, for the idle time of flows and at least a day, and have the keys for it; hosts stamp no
// new connection.
func TestFadingEndpoints(t *testing.T) {
	vip := netip.MustParseAddr("203.0.113.10")
	in := Input{KeyID: 1, Size: eightPerMember, Now: epoch, Wanted: []Wanted{{Backend: backendN(1), Weight: 1}}, Idle: time.Hour}
	advance := func(st EndpointState, form string, after time.Duration) EndpointState {
		t.Helper()
		in.Cookies, in.Form, in.Now = form != "", form, in.Now.Add(after)
		next, err := Advance(st, in)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	none := EndpointState{Key: lb.EndpointKey{VIP: vip, Protocol: lb.TCP, Port: 80}}
	flow := lb.Endpoint{Affinity: lb.AffinityFlow, Protocol: lb.TCP, Port: 80}
	svc := lb.Service{Name: "web", VIPs: []netip.Addr{vip}, Endpoints: []lb.Endpoint{flow}}
	for _, form := range []string{lb.CookieEVC, lb.CookieCO} {
		with := advance(none, form, 0)
		st := advance(with, "", time.Minute)
		until := in.Now.Add(MinYoung)
		if !st.Fading.Equal(until) || !Due(&st, in).Equal(until) || st.Form != form {
			t.Fatalf("form %s: fades until %v (%q), due %v, want %v", form, st.Fading, st.Form, Due(&st, in), until)
		}
		if got := MakeEndpoint(&svc, &flow, &st, nil, lb.EncapIPIP); got.Affinity != lb.AffinityCookie || got.Cookie != form || !got.FlowsFirst || got.KeepDead {
			t.Errorf("form %s: its plan: %+v", form, got)
		}
		for _, hb := range MakeBindings(&svc, &flow, &st, lb.EncapIPIP) {
			if hb.Binding.Cookie {
				t.Errorf("form %s: hosts stamp: %+v", form, hb)
			}
		}
		nat := flow
		nat.Path = lb.PathNAT
		if got := MakeEndpoint(&svc, &nat, &st, nil, ""); got.Cookie != "" || got.FlowsFirst {
			t.Errorf("form %s: with path nat: %+v", form, got)
		}
		s := State{
			Services: map[string]*lb.Service{"web": &svc}, Endpoints: map[lb.EndpointKey]EndpointState{none.Key: st},
			Nodes:   map[string]*lb.Node{"mux1": {Name: "mux1", Role: lb.RoleMux}},
			Cookies: map[place.Key]KeySet{VIPKey(vip): NewKeySet("web", SetKey{Epoch: 1})},
		}
		if p := ForNode(&s, "mux1"); len(p.Cookies) != 1 {
			t.Errorf("form %s: the mux's keys: %v", form, p.Cookies)
		}
		if again := advance(st, form, time.Hour); !again.Fading.IsZero() || again.Young.IsZero() {
			t.Errorf("form %s: with cookies again it fades until %v, is young until %v", form, again.Fading, again.Young)
		}
		in.Now = until.Add(-1)
		if st = advance(st, "", 0); !st.Fading.Equal(until) {
			t.Errorf("form %s: a moment before: until %v", form, st.Fading)
		}
		st = advance(st, "", 1)
		if got := MakeEndpoint(&svc, &flow, &st, nil, lb.EncapIPIP); !st.Fading.IsZero() || st.Form != "" || got.Cookie != "" || got.Affinity != lb.AffinityFlow {
			t.Errorf("form %s: its time is over: %v %q, plan %+v", form, st.Fading, st.Form, got)
		}
	}
	st := advance(advance(none, lb.CookieEVC, 0), "", 0)
	for name, change := range map[string]func(*lb.Endpoint){
		"source":    func(e *lb.Endpoint) { e.Source = &lb.SourceAffinity{} },
		"fragments": func(e *lb.Endpoint) { e.Fragments = lb.Fragments3Tuple },
		"onePacket": func(e *lb.Endpoint) { e.OnePacket = true },
	} {
		other := flow
		change(&other)
		if st.Fades(&other) {
			t.Errorf("fades with %s, which no mux takes together with cookies", name)
		}
	}
	// Muxes write the split forms, and have a session for each connection.
	if st := advance(advance(none, lb.CookieSplitR, 0), "", 0); !st.Fading.IsZero() {
		t.Errorf("form split-r: fades until %v", st.Fading)
	}
	// All member ids must fit into the cookie.
	st = advance(advance(none, lb.CookieCO, 0), "", 0)
	st.Members[0].ID = lb.MaxShortCookieMembers
	if st.Fades(&flow) {
		t.Error("with an id that form co does not have")
	}
}

// TestFadingQUIC: after an endpoint loses affinity cookie, muxes still read its connection ids for
// a day and have the keys for it; flows without an id have the idle time of UDP flows.
func TestFadingQUIC(t *testing.T) {
	vip := netip.MustParseAddr("203.0.113.10")
	key := lb.EndpointKey{VIP: vip, Protocol: lb.UDP, Port: 443}
	in := Input{KeyID: 1, Size: eightPerMember, Now: epoch, Wanted: []Wanted{{Backend: backendN(1), Weight: 1}}, Idle: 2 * time.Minute, Cookies: true}
	idle := lb.Idle{Untrusted: 30 * time.Second, Trusted: 2 * time.Minute}
	for _, format := range []*lb.QUIC{{Format: lb.QUICLB, ServerIDLength: 3, NonceLength: 13}, {Format: lb.QUICMsquic}} {
		for name, now := range map[string]lb.Endpoint{
			"udp":  {Affinity: lb.AffinityFlow, Protocol: lb.UDP, Port: 443, Idle: idle},
			"none": {Affinity: lb.AffinityHash, Protocol: lb.UDP, Port: 443, Idle: idle, QUIC: &lb.QUIC{Format: lb.QUICNone}},
		} {
			in.Cookies, in.QUIC, in.Now = true, format, epoch
			with, err := Advance(EndpointState{Key: key}, in)
			if err != nil {
				t.Fatal(err)
			}
			in.Cookies, in.QUIC = false, now.QUIC
			st, err := Advance(with, in)
			if err != nil {
				t.Fatal(err)
			}
			got := MakeEndpoint(&lb.Service{}, &now, &st, nil, lb.EncapIPIP)
			if !st.Fading.Equal(epoch.Add(MinYoung)) || got.Affinity != lb.AffinityCookie || !got.QUIC.Equal(format) || !got.FlowsFirst || got.Idle.Untrusted != idle.Trusted {
				t.Errorf("%s to %s: fades until %v, plan %+v", format, name, st.Fading, got)
			}
			svc := lb.Service{Name: "web", VIPs: []netip.Addr{vip}, Endpoints: []lb.Endpoint{now}}
			s := State{
				Services: map[string]*lb.Service{"web": &svc}, Endpoints: map[lb.EndpointKey]EndpointState{key: st},
				Nodes: map[string]*lb.Node{"mux1": {Name: "mux1", Role: lb.RoleMux}}, CIDs: map[string]KeySet{"web": NewKeySet("web", SetKey{Epoch: 1})},
				Cookies: map[place.Key]KeySet{VIPKey(vip): NewKeySet("web", SetKey{Epoch: 1})},
			}
			if p := ForNode(&s, "mux1"); (len(p.CIDs) == 1) != format.Keyed() || len(p.Cookies) != 0 {
				t.Errorf("%s to %s: the mux's keys: %v, %v", format, name, p.CIDs, p.Cookies)
			}
			in.Now = epoch.Add(MinYoung)
			if st, err = Advance(st, in); err != nil || st.QUIC != nil {
				t.Errorf("%s to %s: a day later %v, %v", format, name, st.QUIC, err)
			}
			if got := MakeEndpoint(&lb.Service{}, &now, &st, nil, lb.EncapIPIP); got.Affinity != now.Affinity || !got.QUIC.Equal(now.QUIC) || got.Idle != idle {
				t.Errorf("%s to %s: a day later its plan is %+v", format, name, got)
			}
		}
	}
}
