package lb_test

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestSNATQuotas: limits are whole ranges, and that of one server is at most the ports of a VIP.
func TestSNATQuotas(t *testing.T) {
	for _, c := range []struct {
		quotas lb.Quotas
		want   string
	}{
		{lb.Quotas{}, ""},
		{lb.Quotas{SNATPorts: 8, SNATPortsPerDIP: 64512}, ""},
		{lb.Quotas{SNATPorts: 1 << 31}, ""},
		{lb.Quotas{SNATPorts: 12}, "tenants/shop: quotas.snatPorts: 12: must be a multiple of 8, the ports of a range, or 0 for no limit"},
		{lb.Quotas{SNATPortsPerDIP: 1}, "tenants/shop: quotas.snatPortsPerDip: 1: must be a multiple of 8, the ports of a range, or 0 for 1024"},
		{lb.Quotas{SNATPortsPerDIP: 64520}, "tenants/shop: quotas.snatPortsPerDip: 64520: must be at most 64512: a VIP has no more ports to lease"},
	} {
		got := ""
		for _, v := range lb.Validate(&lb.Tenant{Name: "shop", Weight: 1, Quotas: c.quotas}) {
			got += v.String()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.quotas, got, c.want)
		}
	}
}

// outbound returns a service without endpoints, for the connections that servers on hosts 10.10.3.1
// and 10.10.3.2 open.
func outbound() *lb.Service {
	return &lb.Service{
		Name: "out", Tenant: "default", VIPs: []netip.Addr{addr("203.0.113.60")},
		SNAT: []lb.SNATServer{{DIP: addr("10.20.1.11"), Host: addr("10.10.3.1")}, {DIP: addr("10.10.3.2"), Host: addr("10.10.3.2")}},
	}
}

// TestOutboundService: a service needs endpoints, or servers with hosts that send from its one IPv4
// VIP.
func TestOutboundService(t *testing.T) {
	network := &lb.Network{Name: "prod", VIPs: []netip.Prefix{prefix("203.0.113.0/24"), prefix("2001:db8:f::/64")}, Underlay: []netip.Prefix{prefix("10.0.0.0/8")}, TunnelSources: []netip.Prefix{prefix("100.64.0.0/16")}}
	lb.SetDefaults(network)
	for _, c := range []struct {
		spoil func(*lb.Service)
		want  string
	}{
		{func(*lb.Service) {}, ""},
		{func(s *lb.Service) { s.SNAT = nil }, "services/out: endpoints: is missing, must have at least one endpoint, or servers in snat"},
		{func(s *lb.Service) { s.VIPs = append(s.VIPs, addr("203.0.113.61")) }, "services/out: vip[1]: 203.0.113.61: must be left out: a service without endpoints has one VIP, which its servers send from"},
		{func(s *lb.Service) { s.VIPs[0] = addr("2001:db8:f::60") }, "services/out: snat: needs an IPv4 VIP: IPv6 servers need no translation"},
		{func(s *lb.Service) { s.SNAT[0].Host = netip.Addr{} }, "services/out: snat[0]: 10.20.1.11: must be the DIP of a backend of the service, or name its host: {dip: 10.20.1.11, host: ADDRESS}"},
		{func(s *lb.Service) { s.SNAT[1].DIP = s.SNAT[0].DIP }, "services/out: snat[1]: 10.20.1.11@10.10.3.2: must not be given twice"},
		{func(s *lb.Service) { s.SNAT[0].DIP = addr("2001:db8::11") }, "services/out: snat[0]: 2001:db8::11@10.10.3.1: must be an IPv4 address: IPv6 servers need no translation"},
		{func(s *lb.Service) { s.SNAT[0].DIP = addr("127.0.0.1") }, "services/out: snat[0]: 127.0.0.1@10.10.3.1: must not be a loopback address"},
		{func(s *lb.Service) { s.SNAT[0].DIP = s.VIPs[0] }, "services/out: snat[0]: 203.0.113.60@10.10.3.1: must not be a VIP of the service"},
		{func(s *lb.Service) { s.SNAT[0].Host = addr("224.0.0.1") }, "services/out: snat[0]: 10.20.1.11@224.0.0.1: its host must not be a multicast address"},
		{func(s *lb.Service) { s.SNAT[0].Host = addr("192.0.2.1") }, "services/out: snat[0]: 10.20.1.11@192.0.2.1: 192.0.2.1 must be inside the underlay of networks/prod: 10.0.0.0/8"},
		{func(s *lb.Service) { s.SNAT[1] = lb.SNATServer{DIP: addr("203.0.113.9"), Host: addr("10.10.3.1")} }, "services/out: snat[1]: 203.0.113.9@10.10.3.1: 203.0.113.9 must not be inside the vips of networks/prod: 203.0.113.0/24"},
		{func(s *lb.Service) { s.SNAT[0].Host = addr("fd00::1") }, "services/out: snat[0]: 10.20.1.11@fd00::1: fd00::1 must be inside the underlay of networks/prod: 10.0.0.0/8"},
	} {
		s := outbound()
		c.spoil(s)
		faults := lb.Validate(s)
		if len(faults) == 0 {
			faults = lb.ValidateState([]lb.Object{network, s})
		}
		got := ""
		for _, v := range faults {
			got += v.String()
		}
		if got != c.want {
			t.Errorf("got:  %s\nwant: %s", got, c.want)
		}
	}
}

// TestSNATServerHosts: a host must be that of the backend if there is one; servers without a
// backend are allowed in a service with endpoints.
func TestSNATServerHosts(t *testing.T) {
	s := serviceOf("web", "shop", 1, lb.PathDSR)
	b := &s.Endpoints[0].Backends[0]
	s.SNAT = []lb.SNATServer{{DIP: b.DIPs[0]}, {DIP: addr("10.1.1.99"), Host: addr("10.1.1.9")}}
	if v := lb.Validate(s); v != nil {
		t.Fatal(v)
	}
	if got := s.SNATHosts(); len(got) != 2 || got[b.DIPs[0]] != b.Host || got[addr("10.1.1.99")] != addr("10.1.1.9") {
		t.Errorf("hosts %v", got)
	}
	if plain := serviceOf("web", "shop", 1, lb.PathDSR).Usage(); s.Usage().Backends != plain.Backends+1 || s.Usage().Everywhere.Members != plain.Everywhere.Members+1 {
		t.Errorf("a server without a backend takes %+v beyond %+v", s.Usage(), plain)
	}
	s.SNAT[0].Host = addr("10.1.1.9")
	want := "services/web: snat[0]: " + b.DIPs[0].String() + "@10.1.1.9: must have host " + b.Host.String() + ", as the backend with this DIP has"
	if v := lb.Validate(s); len(v) != 1 || v[0].String() != want {
		t.Errorf("another host than the backend's: %v, want %s", v, want)
	}
	if s.SNAT[0].Host = b.Host; lb.Validate(s) != nil {
		t.Errorf("the backend's host by name: %v", lb.Validate(s))
	}
}

// TestSNATServerText: both forms in YAML, and that of the API, read back as written.
func TestSNATServerText(t *testing.T) {
	text := "kind: Service\nname: out\nvip: 203.0.113.60\nsnat: [{dip: 10.20.1.11, host: 10.10.3.1}, 10.10.3.2@10.10.3.2]\n"
	got, err := lb.Parse(strings.NewReader(text), "out.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || !lb.Equal(got[0], outbound()) {
		t.Errorf("read %s", lb.Marshal(got...))
	}
	again, err := lb.Parse(bytes.NewReader(lb.Marshal(got...)), "again.yaml")
	if err != nil || !lb.Equal(again[0], got[0]) {
		t.Errorf("%v\n%s", err, lb.Marshal(got...))
	}
	for _, wrong := range []string{"10.20.1.11@", "@10.10.3.1", "web", "10.20.1.11@web", "10.20.1.11@10.10.3.1@10.10.3.2", "::ffff:10.20.1.11"} {
		if s, allowed := lb.ParseSNATServer(wrong); allowed == "" {
			t.Errorf("%q is read as %v", wrong, s)
		}
	}
	for _, item := range []string{"{dip: 10.20.1.11}", "{host: 10.10.3.1}", "{dip: 10.20.1.11, host: 10.10.3.1, port: 1}", "[10.20.1.11]", "7"} {
		if _, err := lb.Parse(strings.NewReader("kind: Service\nname: out\nvip: 203.0.113.60\nsnat: ["+item+"]\n"), "out.yaml"); err == nil {
			t.Errorf("snat: [%s] is taken", item)
		}
	}
}

// TestSNATTimes: a Network sets, within bounds, how long ports stay leased to servers that do not
// use them and how long they rest. Its VIPs have these times, and defaults for those not set.
func TestSNATTimes(t *testing.T) {
	read := func(text string) (*lb.Network, string) {
		got, err := lb.Parse(strings.NewReader("kind: Network\nname: prod\nvips: 203.0.113.0/24\nunderlay: 10.0.0.0/8\n"+text), "n.yaml")
		if err != nil {
			return nil, err.Error()
		}
		again, err := lb.Parse(bytes.NewReader(lb.Marshal(got...)), "again.yaml")
		if err != nil || !lb.Equal(again[0], got[0]) {
			t.Errorf("%v: written as\n%s", err, lb.Marshal(got...))
		}
		return got[0].(*lb.Network), ""
	}
	vip := addr("203.0.113.10")
	for text, want := range map[string]lb.SNATTimes{
		"":                                   lb.DefaultSNATTimes,
		"snat: {idle: 30s}":                  {Idle: 30 * time.Second, Quarantine: 2 * time.Minute},
		"snat: {quarantine: 10m}":            {Idle: 4 * time.Minute, Quarantine: 10 * time.Minute},
		"snat: {idle: 24h, quarantine: 30s}": {Idle: 24 * time.Hour, Quarantine: 30 * time.Second},
	} {
		n, fault := read(text)
		if fault != "" {
			t.Errorf("%s: %s", text, fault)
			continue
		}
		if got := (lb.Networks{n}).SNATTimes(vip); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
	if got := (lb.Networks{}).SNATTimes(vip); got != lb.DefaultSNATTimes {
		t.Errorf("without a Network: %+v", got)
	}
	for text, want := range map[string]string{
		"snat: {idle: 29s}":       "networks/prod: snat.idle: 29s: must be 30s to 24h",
		"snat: {idle: 0s}":        "must be 30s to 24h",
		"snat: {idle: 25h}":       "networks/prod: snat.idle: 25h: must be 30s to 24h",
		"snat: {quarantine: 29s}": "networks/prod: snat.quarantine: 29s: must be 30s to 10m",
		"snat: {quarantine: 11m}": "networks/prod: snat.quarantine: 11m: must be 30s to 10m",
		"snat: {keep: 2}":         "must be idle or quarantine",
	} {
		if _, fault := read(text); !strings.Contains(fault, want) {
			t.Errorf("%s: %q, want %q", text, fault, want)
		}
	}
}
