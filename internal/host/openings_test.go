package host

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

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
	h.follow(&plan.Plan{MTU: 1500})
	if opened != 0 || len(h.trouble()) != 0 {
		t.Fatalf("without such endpoints the program is loaded %d times, trouble %v", opened, h.trouble())
	}
	h.follow(p)
	if got := strings.Join(h.trouble(), "; "); opened != 1 || !strings.HasSuffix(got, "cookie.form co: no way") {
		t.Fatalf("a program that cannot be loaded: opened %d times, trouble %q", opened, got)
	}
	fails = nil
	h.follow(p)
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
	h.follow(p)
	if got := strings.Join(h.trouble(), "; "); len(fake.Endpoints) != 0 || !strings.Contains(got, "net.ipv4.tcp_timestamps is 0") {
		t.Errorf("without timestamps: %d endpoints, trouble %q", len(fake.Endpoints), got)
	}
	if err := h.close(); err != nil || !fake.Closed {
		t.Errorf("closed: %v, %v", fake.Closed, err)
	}
}
