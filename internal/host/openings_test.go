package host

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

func TestHandshakesFollowThePlan(t *testing.T) {
	vip4, vip6 := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8:f::1")
	key := func(vip netip.Addr, port uint16) lb.EndpointKey {
		return lb.EndpointKey{VIP: vip, Protocol: lb.TCP, Port: port}
	}
	p := &plan.Plan{MTU: 1500,
		Bindings: []plan.Binding{
			{Key: key(vip4, 80), Member: 7, Cookie: true},
			{Key: key(vip4, 80), Member: 8, Cookie: true},
			{Key: key(vip4, 81), Member: 7, Cookie: true, Rewrite: true},
			{Key: key(vip4, 82), Member: 7},
			{Key: key(vip6, 80), Member: 3, Cookie: true},
			{Key: key(netip.MustParseAddr("203.0.113.2"), 80), Member: 3, Cookie: true},
		},
		Cookies: []plan.CookieKeys{
			{VIP: vip4, Keys: []plan.CookieKey{{Epoch: 4, Key: [16]byte{4}}, {Epoch: 5, Key: [16]byte{5}}}, Mint: 4},
			{VIP: vip6, Keys: []plan.CookieKey{{Epoch: 1, Key: [16]byte{1}}}, Mint: 1},
		},
	}
	fake, opened, fails := &dataplane.FakeHostCO{}, 0, errors.New("no way")
	settings := map[string]string{"net/ipv4/tcp_sack": "0\n", "net/ipv4/tcp_window_scaling": "1\n", "net/ipv4/tcp_timestamps": "1\n"}
	sysctl := func(key string) (string, error) { return settings[key], nil }
	h := newOpenings(func() (dataplane.HostCOTables, error) { opened++; return fake, fails }, sysctl, clock.System{}, slog.New(slog.DiscardHandler))
	obeys := func(p *plan.Plan) {
		t.Helper()
		if err := h.follow(p); err != nil {
			t.Fatal(err)
		}
	}
	obeys(&plan.Plan{MTU: 1500})
	if opened != 0 || len(h.trouble()) != 0 {
		t.Fatalf("without such endpoints the program is loaded %d times, trouble %v", opened, h.trouble())
	}
	err := h.follow(p)
	if got := strings.Join(h.trouble(), "; "); opened != 1 || !strings.Contains(got, "cookie.form co: no way (sysctl -w net.ipv4.tcp_timestamps=0") || err == nil || !strings.Contains(got, err.Error()) {
		t.Fatalf("a program that cannot be loaded: opened %d times, trouble %q, %v", opened, got, err)
	}
	fails = nil
	obeys(p)
	if len(fake.Endpoints) != 2 || !fake.Setup.WindowScaling || fake.Setup.SACK {
		t.Fatalf("%d endpoints, setup %+v", len(fake.Endpoints), fake.Setup)
	}
	four, six := fake.Endpoints[0], fake.Endpoints[1]
	if four.Key != key(vip4, 80) || four.Member != 7 || four.Mint != 0 || four.Live != [2]bool{true, true} || four.Keys != [2][16]byte{{4}, {5}} || four.MSS != 1460 {
		t.Errorf("the first is %+v", four)
	}
	if six.Key != key(vip6, 80) || six.Mint != 1 || six.Live != [2]bool{false, true} || six.MSS != 1440 {
		t.Errorf("the second is %+v", six)
	}
	got := strings.Join(h.trouble(), "; ")
	for _, want := range []string{"203.0.113.1 port 80: two of its members", "203.0.113.2 port 80: there are no cookie keys"} {
		if !strings.Contains(got, want) {
			t.Errorf("trouble %q does not say %q", got, want)
		}
	}
	settings["net/ipv4/tcp_timestamps"] = "0\n"
	obeys(p)
	if got := strings.Join(h.trouble(), "; "); len(fake.Endpoints) != 0 || !strings.Contains(got, "net.ipv4.tcp_timestamps is 0") {
		t.Errorf("without timestamps: %d endpoints, trouble %q", len(fake.Endpoints), got)
	}
	// Changed settings are applied without another plan.
	settings["net/ipv4/tcp_timestamps"], settings["net/ipv4/tcp_sack"] = "1\n", "1\n"
	h.tend()
	if got := strings.Join(h.trouble(), "; "); len(fake.Endpoints) != 2 || !fake.Setup.SACK || fake.Tuned != 1 || strings.Contains(got, "tcp_timestamps") {
		t.Errorf("after other settings: %d endpoints, setup %+v, tuned %d times, trouble %q", len(fake.Endpoints), fake.Setup, fake.Tuned, got)
	}
	// A server elsewhere has no clock that could be set.
	h.own = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("10.20.1.1")}, nil }
	for i := range p.Bindings {
		p.Bindings[i].DIP = netip.MustParseAddr("10.20.1.1")
	}
	p.Bindings[0].DIP = netip.MustParseAddr("10.20.1.11")
	obeys(p)
	if got := strings.Join(h.trouble(), "; "); strings.Count(got, "is not on this machine itself") != 1 || !strings.Contains(got, "203.0.113.1 port 80: its server 10.20.1.11 is not") {
		t.Errorf("with a server elsewhere: trouble %q", got)
	}
	if err := h.close(); err != nil || !fake.Closed {
		t.Errorf("closed: %v, %v", fake.Closed, err)
	}
}

// TestHandshakesThatAreThere checks that a new agent takes over the program of the previous one
// immediately, and empties its table when the plan has no such endpoint.
func TestHandshakesThatAreThere(t *testing.T) {
	fake, opened := &dataplane.FakeHostCO{Endpoints: make([]dataplane.COEndpoint, 1)}, 0
	sysctl := func(string) (string, error) { return "1\n", nil }
	h := newOpenings(func() (dataplane.HostCOTables, error) { opened++; return fake, nil }, sysctl, clock.System{}, slog.New(slog.DiscardHandler))
	h.adopt()
	h.tend()
	if opened != 1 || fake.Tuned != 1 || len(fake.Endpoints) != 1 {
		t.Errorf("before a plan: opened %d times, tuned %d times, %d endpoints", opened, fake.Tuned, len(fake.Endpoints))
	}
	if err := h.follow(&plan.Plan{MTU: 1500}); err != nil {
		t.Fatal(err)
	}
	if opened != 1 || len(fake.Endpoints) != 0 || len(h.trouble()) != 0 {
		t.Errorf("of an empty plan: opened %d times, %d endpoints, trouble %v", opened, len(fake.Endpoints), h.trouble())
	}
}

// ownerPlan returns a plan with a server that owns a VIP.
func ownerPlan(vip netip.Addr) plan.Plan {
	own := netip.MustParseAddr("10.20.1.1")
	return plan.Plan{MTU: 1500,
		Bindings: []plan.Binding{{Key: lb.EndpointKey{VIP: vip, Protocol: lb.TCP, Port: 80}, Outer: own, DIP: own, DIPPort: 80, Cookie: true}},
		Cookies:  []plan.CookieKeys{{VIP: vip, Keys: []plan.CookieKey{{Epoch: 1}}, Mint: 1}},
	}
}

// TestHandshakesThatAreRefused checks that Apply returns an error when the tables refuse
// handshakes, although the rest of the plan is applied, because the tables then differ from the
// plan. A kernel without the feature is a problem of the machine, which its status reports.
func TestHandshakesThatAreRefused(t *testing.T) {
	var tables dataplane.FakeHost
	var opens error
	fake := &dataplane.FakeHostCO{}
	a := New(&tables, settings(map[string]string{"net/ipv4/tcp_timestamps": "1"}), &prober{}, clock.NewFake(time.Now()), nil)
	a.openings = newOpenings(func() (dataplane.HostCOTables, error) { return fake, opens }, a.machine.Sysctl, a.clock, slog.New(slog.DiscardHandler))
	p := ownerPlan(netip.MustParseAddr("203.0.113.1"))
	for _, c := range []struct {
		opens, refuses error
		want           string
	}{
		{opens: dataplane.ErrNoCO},
		{opens: errors.New("load handshake program: permission denied\nlog"), want: "cookie.form co: load handshake program: permission denied (sysctl"},
		{refuses: errors.New("handshakes: 5000 endpoints: must be at most 4096"), want: "cookie.form co: handshakes: 5000 endpoints: must be at most 4096 (sysctl"},
		{},
	} {
		opens, fake.Refuses = c.opens, c.refuses
		p.Revision++
		err := a.Apply(t.Context(), p)
		if state, _ := tables.State(); len(state.Bindings) != 1 {
			t.Errorf("%v: the bindings do not follow: %+v", c, state)
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want) || !strings.Contains(a.Status().GetError(), err.Error())) {
			t.Errorf("%v: %v, status %q, want %q", c, err, a.Status().GetError(), c.want)
		}
	}
	if len(fake.Endpoints) != 1 || strings.Contains(a.Status().GetError(), "cookie.form co") {
		t.Errorf("in the end: %+v, status %q", fake.Endpoints, a.Status().GetError())
	}
}

// TestHandshakesThatCannotBe checks that the status reports a machine without the feature, with or
// without a plan that needs it.
func TestHandshakesThatCannotBe(t *testing.T) {
	var tables dataplane.FakeHost
	a := New(&tables, settings(forwarding), &prober{}, clock.System{}, nil)
	a.openings = newOpenings(func() (dataplane.HostCOTables, error) { return nil, dataplane.ErrNoCO }, a.machine.Sysctl, clock.System{}, slog.New(slog.DiscardHandler))
	if st := a.Status(); st.GetNoHandshakes() != "" || st.GetError() != "" {
		t.Errorf("of one that can: %v", st)
	}
	a.openings.cannot = dataplane.ErrNoCO.Error()
	if st := a.Status(); st.GetNoHandshakes() != dataplane.ErrNoCO.Error() || st.GetError() != "" {
		t.Errorf("of one that cannot, and need not: %v", st)
	}
	vip := netip.MustParseAddr("203.0.113.1")
	p := ownerPlan(vip)
	if err := a.openings.follow(&p); err != nil {
		t.Fatal(err)
	}
	if st := a.Status(); !strings.Contains(st.GetError(), "tcp_timestamps is 0") {
		t.Errorf("without timestamps: %v", st) // settings are all 0
	}
	a.openings.sysctl = func(string) (string, error) { return "1", nil }
	a.openings.tend()
	if st := a.Status(); !strings.Contains(st.GetError(), "cookie.form co: "+dataplane.ErrNoCO.Error()) {
		t.Errorf("of one that should: %v", st)
	}
}

// TestOrdinaryPlansReadNothing checks that a host without endpoints of cookie.form co reads no
// setting and no address of its machine when a plan changes, because there may be hundreds of
// changes a second.
func TestOrdinaryPlansReadNothing(t *testing.T) {
	reads := 0
	h := newOpenings(func() (dataplane.HostCOTables, error) { return &dataplane.FakeHostCO{}, nil },
		func(string) (string, error) { reads++; return "1", nil }, clock.System{}, slog.New(slog.DiscardHandler))
	h.own = func() ([]netip.Addr, error) { reads++; return nil, nil }
	p := ownerPlan(netip.MustParseAddr("203.0.113.1"))
	p.Bindings[0].Cookie = false
	if err := h.follow(&p); err != nil || reads != 0 {
		t.Errorf("of an ordinary plan: %v, %d reads", err, reads)
	}
	p.Bindings[0].Cookie = true
	if err := h.follow(&p); err != nil || reads == 0 {
		t.Errorf("of one with handshakes: %v, %d reads", err, reads)
	}
}
