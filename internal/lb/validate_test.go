package lb_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// validService returns a service with two families, two endpoints, two backends.
func validService() *lb.Service {
	s := &lb.Service{Name: "web", VIPs: []netip.Addr{addr("203.0.113.10"), addr("2001:db8:f::10")}, Limits: &lb.Limits{}, Sources: &lb.Sources{}}
	for _, port := range []uint16{80, 443} {
		s.Endpoints = append(s.Endpoints, lb.Endpoint{Protocol: lb.TCP, Port: port, Backends: []lb.Backend{
			{DIPs: []netip.Addr{addr("10.20.1.11"), addr("2001:db8:20:1::11")}, Host: addr("10.20.1.1"), Weight: 1},
			{DIPs: []netip.Addr{addr("10.20.2.11")}, Host: addr("10.20.2.1"), Weight: 1},
		}})
	}
	lb.SetDefaults(s)
	for i := range s.Endpoints {
		// because tests change endpoints to such without tunnels
		s.Endpoints[i].Health.Checks[0].Through = lb.ThroughDirect
	}
	return s
}

func validNode() *lb.Node {
	n := &lb.Node{Name: "mux1", Role: lb.RoleMux, Addresses: []netip.Addr{addr("10.10.0.11"), addr("2001:db8:10::11")}}
	n.BGP = &lb.BGP{ASN: 65010, Peers: []lb.BGPPeer{{Address: addr("10.10.0.1"), ASN: 65000, BFD: &lb.BFD{}}}}
	lb.SetDefaults(n)
	return n
}

func validNetwork() *lb.Network {
	n := &lb.Network{
		Name: "dc", VIPs: []netip.Prefix{prefix("203.0.113.0/24"), prefix("2001:db8:f::/64")},
		Underlay: []netip.Prefix{prefix("10.0.0.0/8"), prefix("2001:db8::/32")},
	}
	lb.SetDefaults(n)
	return n
}

// otherNetwork returns a Network that does not overlap validNetwork.
func otherNetwork() *lb.Network {
	n := &lb.Network{
		Name: "other", VIPs: []netip.Prefix{prefix("198.18.0.0/16")}, Underlay: []netip.Prefix{prefix("172.16.0.0/16")}, MTU: 9000,
		TunnelSources: []netip.Prefix{prefix("100.80.0.0/16"), prefix("fd53::/64")},
	}
	lb.SetDefaults(n)
	return n
}

func TestValidObjects(t *testing.T) {
	s := validService()
	s.Policy, s.Tenant = "gold", "shop"
	all := []lb.Object{
		s, validNode(), validNetwork(), otherNetwork(), &lb.Policy{Name: "gold", Tenant: "shop"},
		&lb.Tenant{Name: "shop", Weight: 1, Quotas: lb.Quotas{Services: 1, Endpoints: 4, Backends: 4}},
	}
	if v := lb.Validate(all...); v != nil {
		t.Errorf("Validate: %v", v)
	}
	if v := lb.ValidateState(all); v != nil {
		t.Errorf("ValidateState: %v", v)
	}
}

// first returns the first endpoint, backend its first backend.
func first(s *lb.Service) *lb.Endpoint  { return &s.Endpoints[0] }
func backend(s *lb.Service) *lb.Backend { return &s.Endpoints[0].Backends[0] }

func TestServiceRefusals(t *testing.T) {
	const unicastDIP = "services/web: endpoints[0].backends[0].dip[0]: "
	cases := []struct {
		spoil func(*lb.Service)
		want  string
	}{
		{func(s *lb.Service) { s.Name = "" }, "services: name: is missing, must be a DNS label: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"},
		{func(s *lb.Service) { s.Name = "Web" }, "services/Web: name: Web: must be a DNS label: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"},
		{func(s *lb.Service) { s.Tenant = "a.b" }, "services/web: tenant: a.b: must be a DNS label: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"},
		{func(s *lb.Service) { s.VIPs = nil }, "services/web: vip: is missing, must have at least one address"},
		{func(s *lb.Service) { s.VIPs[1] = s.VIPs[0] }, "services/web: vip[1]: 203.0.113.10: must not be given twice"},
		{func(s *lb.Service) { s.VIPs[0] = netip.Addr{} }, "services/web: vip[0]: is missing, must be an IPv4 or IPv6 address"},
		{func(s *lb.Service) { s.VIPs[0] = addr("::ffff:203.0.113.10") }, "services/web: vip[0]: ::ffff:203.0.113.10: must not be IPv4-mapped, write 203.0.113.10"},
		{func(s *lb.Service) { s.VIPs[1] = addr("2001:db8::1%eth0") }, "services/web: vip[1]: 2001:db8::1%eth0: must not have a zone"},
		{func(s *lb.Service) { s.VIPs[0] = addr("224.0.0.1") }, "services/web: vip[0]: 224.0.0.1: must not be a multicast address"},
		{func(s *lb.Service) { s.VIPs[1] = addr("ff02::1") }, "services/web: vip[1]: ff02::1: must not be a multicast address"},
		{func(s *lb.Service) { s.VIPs[0] = addr("0.0.0.0") }, "services/web: vip[0]: 0.0.0.0: must not be the unspecified address"},
		{func(s *lb.Service) { s.VIPs[1] = addr("::") }, "services/web: vip[1]: ::: must not be the unspecified address"},
		{func(s *lb.Service) { s.VIPs[0] = addr("127.0.0.1") }, "services/web: vip[0]: 127.0.0.1: must not be a loopback address"},
		{func(s *lb.Service) { s.VIPs[1] = addr("::1") }, "services/web: vip[1]: ::1: must not be a loopback address"},
		{func(s *lb.Service) { s.VIPs[0] = addr("169.254.1.1") }, "services/web: vip[0]: 169.254.1.1: must not be a link-local address"},
		{func(s *lb.Service) { s.VIPs[1] = addr("fe80::1") }, "services/web: vip[1]: fe80::1: must not be a link-local address"},
		{func(s *lb.Service) { s.VIPs[0] = addr("255.255.255.255") }, "services/web: vip[0]: 255.255.255.255: must be a unicast address"},
		{func(s *lb.Service) { s.VIPs[0] = addr("0.1.2.3") }, "services/web: vip[0]: 0.1.2.3: must be a unicast address"},
		{func(s *lb.Service) { s.SNAT = []lb.SNATServer{{DIP: addr("10.20.9.11")}} }, "services/web: snat[0]: 10.20.9.11: must be the DIP of a backend of the service, or name its host: {dip: 10.20.9.11, host: ADDRESS}"},
		{func(s *lb.Service) { s.Endpoints = nil }, "services/web: endpoints: is missing, must have at least one endpoint, or servers in snat"},
		{func(s *lb.Service) { s.Endpoints[1].Port = 80 }, "services/web: endpoints[1]: tcp port 80: must differ from endpoints[0] in protocol or port"},

		{func(s *lb.Service) { first(s).Protocol = 0 }, "services/web: endpoints[0].protocol: is missing, must be tcp, udp, quic or any"},
		{func(s *lb.Service) { first(s).Protocol = 132 }, "services/web: endpoints[0].protocol: 132: must be tcp, udp, quic or any"},
		{func(s *lb.Service) { first(s).Port = 0 }, "services/web: endpoints[0].port: 0: must be 1 to 65535, a range such as \"8000-8100\", or \"*\""},
		{func(s *lb.Service) { first(s).Path = "nat" }, "services/web: endpoints[0].repairWindow: 1h: must be left out with path nat: no host repairs connections"},
		{func(s *lb.Service) { first(s).Path = "bypass" }, "services/web: endpoints[0].path: bypass: not supported by this version, must be dsr or nat"},
		{func(s *lb.Service) { first(s).Path = "DSR" }, "services/web: endpoints[0].path: DSR: must be dsr or nat"},
		{func(s *lb.Service) { first(s).Affinity, first(s).Idle = "sticky", lb.Idle{} }, "services/web: endpoints[0].affinity: sticky: must be flow, hash or cookie"},
		{func(s *lb.Service) { first(s).Scheduler = "" }, "services/web: endpoints[0].scheduler: must be maglev, random, round-robin, weighted-round-robin, adaptive, least-connections or p2c"},
		{func(s *lb.Service) { first(s).Rewrite = "mux" }, "services/web: endpoints[0].rewrite: mux: must be host or none"},
		{func(s *lb.Service) { first(s).Backends = nil }, "services/web: endpoints[0].backends: is missing, must have at least one backend"},
		{func(s *lb.Service) { backend(s).DIPs = backend(s).DIPs[:1] }, "services/web: endpoints[0].backends: must have a backend with an IPv6 address for the VIP 2001:db8:f::10"},

		{func(s *lb.Service) { backend(s).DIPs = nil }, "services/web: endpoints[0].backends[0].dip: is missing, must be an address, or one of each family"},
		{func(s *lb.Service) { backend(s).DIPs[1] = addr("10.20.1.12") }, "services/web: endpoints[0].backends[0].dip[1]: 10.20.1.12: must be at most one address of each family"},
		{func(s *lb.Service) { backend(s).DIPs[0] = addr("239.1.1.1") }, unicastDIP + "239.1.1.1: must not be a multicast address"},
		{func(s *lb.Service) { backend(s).DIPs[0] = addr("127.0.0.1") }, unicastDIP + "127.0.0.1: must not be a loopback address"},
		{func(s *lb.Service) { backend(s).DIPs[0] = addr("::ffff:10.0.0.1") }, unicastDIP + "::ffff:10.0.0.1: must not be IPv4-mapped, write 10.0.0.1"},
		{func(s *lb.Service) { backend(s).DIPs[0] = addr("203.0.113.10") }, unicastDIP + "203.0.113.10: must not be a VIP of the service"},
		{func(s *lb.Service) { backend(s).Port = 0 }, "services/web: endpoints[0].backends[0].port: 0: must be 1 to 65535"},
		{func(s *lb.Service) { first(s).Rewrite, backend(s).Port = lb.RewriteNone, 8080 }, "services/web: endpoints[0].backends[0].port: 8080: must be the endpoint's port 80, because rewrite is none"},
		{func(s *lb.Service) { backend(s).Host = netip.Addr{} }, "services/web: endpoints[0].backends[0].host: is missing, must be an IPv4 or IPv6 address"},
		{func(s *lb.Service) { backend(s).Host = addr("224.0.0.5") }, "services/web: endpoints[0].backends[0].host: 224.0.0.5: must not be a multicast address"},
		{func(s *lb.Service) { backend(s).Host = addr("0.0.0.0") }, "services/web: endpoints[0].backends[0].host: 0.0.0.0: must not be the unspecified address"},
		{func(s *lb.Service) { backend(s).Weight = 1001 }, "services/web: endpoints[0].backends[0].weight: 1001: must be 0 to 1000"},
		{func(s *lb.Service) { first(s).Backends[1].DIPs[0] = addr("10.20.1.11") }, "services/web: endpoints[0].backends[1].dip[0]: 10.20.1.11:80: must differ from backends[0] in address or port"},
		{func(s *lb.Service) {
			first(s).Encap, first(s).Backends[1].DIPs[0], first(s).Backends[1].Port = "ipip", addr("10.20.1.11"), 81
		}, "services/web: endpoints[0].backends[1].dip[0]: 10.20.1.11: must not share its outer destination 10.20.1.11 with backends[0] with encap ipip: gue tells them apart"},
		{func(s *lb.Service) {
			first(s).Encap = "ipip"
			first(s).Backends[1].DIPs, first(s).Backends[1].Host = []netip.Addr{addr("2001:db8:20:2::11")}, addr("10.20.1.1")
		}, "services/web: endpoints[0].backends[1].dip[0]: 2001:db8:20:2::11: must not share its outer destination 10.20.1.1 with backends[0] with encap ipip: gue tells them apart"},

		{func(s *lb.Service) { ranged(s, 80, 79) }, `services/web: endpoints[0].port: 80-79: must be 1 to 65535, a range such as "8000-8100", or "*"`},
		{func(s *lb.Service) { first(s).Protocol, first(s).RepairWindow = lb.AnyProtocol, nil }, `services/web: endpoints[0].port: 80: must be "*" or left out with protocol any`},
		{func(s *lb.Service) { ranged(s, 80, 90); backend(s).Port = 80 }, "services/web: endpoints[0].backends[0].port: 80: must be left out: packets to tcp port 80-90 keep their port"},
		{func(s *lb.Service) { ranged(s, 0, 65535); first(s).Health.Checks[0].Port = 0 }, "services/web: endpoints[0].health.port: is missing, must be 1 to 65535: the backends have all ports"},
		{func(s *lb.Service) { ranged(s, 80, 90); s.Endpoints = append(s.Endpoints, s.Endpoints[0]) }, "services/web: endpoints[2]: tcp port 80-90: must not overlap the range of endpoints[0]: both hold port 80"},
		{func(s *lb.Service) { ranged(s, 0, 65535); s.Endpoints = append(s.Endpoints, s.Endpoints[0]) }, "services/web: endpoints[2]: tcp port *: must differ from endpoints[0] in protocol or port"},
		{func(s *lb.Service) { first(s).Source = &lb.SourceAffinity{Prefix4: 33, Prefix6: 64, For: time.Minute} }, "services/web: endpoints[0].source.prefix4: 33: must be 1 to 32"},
		{func(s *lb.Service) { first(s).Source = &lb.SourceAffinity{Prefix4: 32, Prefix6: 129, For: time.Minute} }, "services/web: endpoints[0].source.prefix6: 129: must be 1 to 128"},
		{func(s *lb.Service) {
			first(s).Source = &lb.SourceAffinity{Prefix4: 32, Prefix6: 64, For: time.Millisecond}
		}, "services/web: endpoints[0].source.for: 1ms: must be 1s to 12h"},
		{func(s *lb.Service) {
			first(s).Affinity, first(s).Idle, first(s).Source = "hash", lb.Idle{}, &lb.SourceAffinity{Prefix4: 32, Prefix6: 64, For: time.Minute}
		}, "services/web: endpoints[0].source.for: 1m: must be left out with affinity hash, which remembers nothing"},
		{func(s *lb.Service) { first(s).Affinity = "hash" }, "services/web: endpoints[0].idle: must be left out: no flow is remembered with affinity hash or onePacket"},
		{func(s *lb.Service) { first(s).Idle.Untrusted = time.Millisecond }, "services/web: endpoints[0].idle.untrusted: 1ms: must be 1s to 12h"},
		{func(s *lb.Service) { first(s).Idle.Trusted = 13 * time.Hour }, "services/web: endpoints[0].idle.trusted: 13h: must be 1s to 12h"},
		{func(s *lb.Service) { first(s).Idle.Trusted = time.Second }, "services/web: endpoints[0].idle.trusted: 1s: must be at least untrusted, 1m"},
		{func(s *lb.Service) { first(s).OnePacket, first(s).Idle = true, lb.Idle{} }, "services/web: endpoints[0].onePacket: true: must be false with protocol tcp: only udp has single packets"},
		{func(s *lb.Service) {
			first(s).RepairWindow = nil
			first(s).Protocol, first(s).OnePacket, first(s).Idle, first(s).Source = lb.UDP, true, lb.Idle{}, &lb.SourceAffinity{Prefix4: 1, Prefix6: 1}
		}, "services/web: endpoints[0].source: must be left out with onePacket, which sends every packet elsewhere"},
		{func(s *lb.Service) {
			first(s).RepairWindow = nil
			first(s).Protocol, first(s).OnePacket, first(s).Idle, first(s).Fragments = lb.UDP, true, lb.Idle{}, "3tuple"
		}, "services/web: endpoints[0].fragments: 3tuple: must be drop with onePacket, which sends every packet elsewhere"},
		{func(s *lb.Service) { first(s).Fragments = "pass" }, "services/web: endpoints[0].fragments: pass: must be drop or 3tuple"},
		{func(s *lb.Service) { first(s).Fragments, s.Endpoints[1].Fragments = "3tuple", "3tuple" }, "services/web: endpoints[1].fragments: 3tuple: must be for one endpoint of protocol tcp, and endpoints[0] has it too"},
		{func(s *lb.Service) { first(s).Encap = "vxlan" }, "services/web: endpoints[0].encap: vxlan: must be ipip or gue"},
		{func(s *lb.Service) { first(s).BackupBelow = 101 }, "services/web: endpoints[0].backupBelow: 101: must be 1 to 100"},
		{func(s *lb.Service) { first(s).SlowStart = time.Hour + 1 }, "services/web: endpoints[0].slowStart: 1h0m0.000000001s: must be 0s to 1h"},
		{func(s *lb.Service) { first(s).DrainTimeout = -1 }, "services/web: endpoints[0].drainTimeout: -1ns: must be 0s to 168h"},
		{func(s *lb.Service) { first(s).HostIdle.Established = 18*time.Hour + 1 }, "services/web: endpoints[0].hostIdle.established: 18h0m0.000000001s: must be 1s to 18h"},
		{func(s *lb.Service) { first(s).HostIdle.Opening = time.Second - 1 }, "services/web: endpoints[0].hostIdle.opening: 999.999999ms: must be 1s to 18h"},
		{func(s *lb.Service) { first(s).HostIdle.Closing = -1 }, "services/web: endpoints[0].hostIdle.closing: -1ns: must be 1s to 18h"},
		{func(s *lb.Service) { first(s).HostIdle.Opening = 3 * time.Hour }, "services/web: endpoints[0].hostIdle.opening: 3h: must be at most established, 2h4m"},
		{func(s *lb.Service) { first(s).HostIdle = lb.HostIdle{Established: time.Minute, Opening: time.Hour} }, "services/web: endpoints[0].hostIdle.opening: 1h: must be at most established, 1m"},
		{func(s *lb.Service) { first(s).HostIdle.UDP = time.Minute }, "services/web: endpoints[0].hostIdle.udp: 1m: must be left out: the endpoint's protocol is tcp"},
		{func(s *lb.Service) { first(s).HostIdle.Other = time.Minute }, "services/web: endpoints[0].hostIdle.other: 1m: must be left out: the endpoint's protocol is tcp"},
		{func(s *lb.Service) {
			first(s).Protocol, first(s).RepairWindow, first(s).HostIdle.Established = lb.UDP, nil, time.Hour
		}, "services/web: endpoints[0].hostIdle.established: 1h: must be left out: the endpoint's protocol is udp"},
		{func(s *lb.Service) { first(s).Rewrite, first(s).HostIdle.Closing = lb.RewriteNone, time.Minute }, "services/web: endpoints[0].hostIdle: must be left out with rewrite none: hosts remember no flow"},
		{func(s *lb.Service) { first(s).Load.Interval = time.Second }, "services/web: endpoints[0].load.interval: 1s: must be left out without http: nobody is asked"},
		{func(s *lb.Service) { first(s).Load.Timeout = time.Second }, "services/web: endpoints[0].load.timeout: 1s: must be left out without http: nobody is asked"},
		{func(s *lb.Service) { first(s).Load.Stale = time.Second - 1 }, "services/web: endpoints[0].load.stale: 999.999999ms: must be 1s to 10m"},
		{func(s *lb.Service) {
			first(s).Load = lb.Load{HTTP: lb.LoadHTTP{Path: "/load"}, Interval: 99 * time.Millisecond}
		}, "services/web: endpoints[0].load.interval: 99ms: must be 100ms to 1m"},
		{func(s *lb.Service) {
			first(s).Load = lb.Load{HTTP: lb.LoadHTTP{Path: "/load"}, Timeout: 11 * time.Second}
		}, "services/web: endpoints[0].load.timeout: 11s: must be 10ms to 10s"},
		{func(s *lb.Service) {
			first(s).Load = lb.Load{HTTP: lb.LoadHTTP{Path: "/load"}, Interval: 5 * time.Second, Stale: 5 * time.Second}
		}, "services/web: endpoints[0].load.stale: 5s: must be longer than interval, 5s"},
		{func(s *lb.Service) { first(s).Load.HTTP.Path = "load" }, "services/web: endpoints[0].load.http.path: load: must begin with / and hold printable ASCII without spaces, at most 1024 bytes"},
		{func(s *lb.Service) { first(s).Load.HTTP = lb.LoadHTTP{Path: "/load", Host: "a b"} }, "services/web: endpoints[0].load.http.host: a b: must be a host name or an address, with or without :port, at most 253 bytes"},
		{func(s *lb.Service) {
			first(s).Protocol, first(s).RepairWindow, first(s).Load.HTTP.Path = lb.UDP, nil, "/load"
		}, "services/web: endpoints[0].load.http.port: is missing, must be 1 to 65535: the backends have no TCP port of their own"},
		{func(s *lb.Service) { first(s).RepairWindow = new(25 * time.Hour) }, "services/web: endpoints[0].repairWindow: 25h: must be 0s to 24h"},
		{func(s *lb.Service) { first(s).RepairWindow = new(time.Duration(-1)) }, "services/web: endpoints[0].repairWindow: -1ns: must be 0s to 24h"},
		{func(s *lb.Service) { s.Limits.Packets = 1e9 + 1 }, "services/web: limits.packets: 1000000001: must be 0 to 1000000000 a second, 0 for no limit"},
		{func(s *lb.Service) { s.Limits.Connections = 1e9 + 1 }, "services/web: limits.connections: 1000000001: must be 0 to 1000000000 a second, 0 for no limit"},
		{func(s *lb.Service) { s.Policy = "Gold" }, "services/web: policy: Gold: must be a DNS label: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"},
		{func(s *lb.Service) { s.Placement = &lb.Placement{Replicas: 1001, By: "vips"} }, "services/web: placement.replicas: 1001: must be 0 to 1000, 0 for every mux"},
		{func(s *lb.Service) { s.Placement = &lb.Placement{By: "zones"} }, "services/web: placement.by: zones: must be vips or load"},
		{func(s *lb.Service) { s.Limits.Ping = 0 }, "services/web: limits.ping: 0: must be 1 to 1000000000 a second"},
		{func(s *lb.Service) { s.Sources.Allow = []netip.Prefix{{}} }, "services/web: sources.allow[0]: must be a prefix such as 203.0.113.0/24 or 2001:db8:f::/64"},
		{func(s *lb.Service) { s.Sources.Deny = []netip.Prefix{netip.PrefixFrom(addr("192.0.2.1"), 24)} }, "services/web: sources.deny[0]: 192.0.2.1/24: must have no bits set after its length, write 192.0.2.0/24"},
		{func(s *lb.Service) { s.Sources.Deny = []netip.Prefix{prefix("::/0"), prefix("::/0")} }, "services/web: sources.deny[1]: ::/0: must not be given twice"},
		{func(s *lb.Service) {
			s.Sources = &lb.Sources{Allow: []netip.Prefix{prefix("10.0.0.0/8"), prefix("::/0")}, Deny: []netip.Prefix{prefix("::/0")}}
		}, "services/web: sources.deny[0]: ::/0: must not be allowed and denied, and sources.allow[1] is the same"},

		{func(s *lb.Service) { first(s).Health.Checks[0].Kind = "ping" }, "services/web: endpoints[0].health: ping: must be tcp, http, https, icmp, grpc, udp, dns or external"},
		{func(s *lb.Service) { first(s).Health.From = "hosts" }, "services/web: endpoints[0].health.from: hosts: must be mux, host or both"},
		{func(s *lb.Service) { first(s).Health.Checks[0].Path = "/" }, "services/web: endpoints[0].health.tcp: must have no fields of other kinds"},
		{func(s *lb.Service) {
			web(s).Path = "healthz"
		}, "services/web: endpoints[0].health.http.path: healthz: must begin with / and hold printable ASCII without spaces, at most 1024 bytes"},
		{func(s *lb.Service) { web(s).Path = "/a b" }, "services/web: endpoints[0].health.http.path: /a b: must begin with / and hold printable ASCII without spaces, at most 1024 bytes"},
		{func(s *lb.Service) {
			web(s).Path = "/\r\nX: y"
		}, `services/web: endpoints[0].health.http.path: "/\r\nX: y": must begin with / and hold printable ASCII without spaces, at most 1024 bytes`},
		{func(s *lb.Service) {
			web(s).Host = "a\nb"
		}, `services/web: endpoints[0].health.http.host: "a\nb": must be a host name or an address, with or without :port, at most 253 bytes`},
		{func(s *lb.Service) { first(s).Health.Checks[0].Interval = 99 * time.Millisecond }, "services/web: endpoints[0].health.interval: 99ms: must be 100ms to 1h"},
		{func(s *lb.Service) { first(s).Health.Checks[0].Interval = time.Hour + 1 }, "services/web: endpoints[0].health.interval: 1h0m0.000000001s: must be 100ms to 1h"},
		{func(s *lb.Service) { first(s).Health.Checks[0].Timeout = time.Second + 1 }, "services/web: endpoints[0].health.timeout: 1.000000001s: must be 1ms to the interval, 1s"},
		{func(s *lb.Service) { first(s).Health.Checks[0].Timeout = 0 }, "services/web: endpoints[0].health.timeout: 0s: must be 1ms to the interval, 1s"},
		{func(s *lb.Service) { first(s).Health.Checks[0].Rise = 0 }, "services/web: endpoints[0].health.rise: 0: must be 1 to 100"},
		{func(s *lb.Service) { first(s).Health.Checks[0].Fall = 101 }, "services/web: endpoints[0].health.fall: 101: must be 1 to 100"},
	}
	for _, c := range cases {
		s := validService()
		c.spoil(s)
		expect(t, lb.Validate(s), c.want)
	}
}

// web makes the first endpoint's check an HTTP check.
func web(s *lb.Service) *lb.Check {
	c := &first(s).Health.Checks[0]
	c.Kind = lb.CheckHTTP
	c.SetDefaults()
	return c
}

// ranged gives the first endpoint a range of ports.
func ranged(s *lb.Service, port, end uint16) {
	e := first(s)
	e.Port, e.PortEnd, e.Health.Checks[0].Port = port, end, 80
	for i := range e.Backends {
		e.Backends[i].Port = 0
	}
}

// TestPortsInsidePorts: narrower ports inside wider ones are valid, and so is an outer destination
// shared by two members with GUE.
func TestPortsInsidePorts(t *testing.T) {
	s, n := validService(), validNetwork()
	ranged(s, 400, 500)
	s.Endpoints = append(s.Endpoints, s.Endpoints[0], s.Endpoints[0], s.Endpoints[0])
	s.Endpoints[2].Port, s.Endpoints[2].PortEnd = 501, 600
	s.Endpoints[3].Port, s.Endpoints[3].PortEnd = 0, lb.AllPorts
	s.Endpoints[4].Protocol, s.Endpoints[4].Port, s.Endpoints[4].PortEnd = lb.AnyProtocol, 0, lb.AllPorts
	s.Endpoints[4].RepairWindow = nil
	e := &s.Endpoints[1]
	e.Encap, e.Backends[1].DIPs[0], e.Backends[1].Port = lb.EncapGUE, e.Backends[0].DIPs[0], 444
	if v := append(lb.Validate(s), lb.ValidateState([]lb.Object{s, n})...); v != nil {
		t.Error(texts(v))
	}
	e.Encap, n.Encap = "", lb.EncapGUE
	if v := lb.ValidateState([]lb.Object{s, n}); v != nil {
		t.Error(texts(v))
	}
}

func TestManyBackends(t *testing.T) {
	s := validService()
	for i := range lb.MaxBackends {
		s.Endpoints[0].Backends = append(s.Endpoints[0].Backends, lb.Backend{
			DIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)})}, Port: 80, Host: addr("10.20.1.1"),
		})
	}
	expect(t, lb.Validate(s), "services/web: endpoints[0].backends: 65537 backends: must be at most 65535")
}

func TestNodeRefusals(t *testing.T) {
	cases := []struct {
		spoil func(*lb.Node)
		want  string
	}{
		{func(n *lb.Node) { n.Name = "-" }, "nodes/-: name: -: must be a DNS label: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"},
		{func(n *lb.Node) { n.Role = "" }, "nodes/mux1: role: is missing, must be mux or host"},
		{func(n *lb.Node) { n.Role = "switch" }, "nodes/mux1: role: switch: not supported by this version, must be mux or host"},
		{func(n *lb.Node) { n.Role = "client" }, "nodes/mux1: role: client: must be mux or host"},
		{func(n *lb.Node) { n.Role = lb.RoleHost }, "nodes/mux1: bgp: must not be given for a host: only muxes speak BGP"},
		{func(n *lb.Node) { n.Zone = "a b" }, "nodes/mux1: zone: a b: must be a DNS label: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"},
		{func(n *lb.Node) { n.Addresses = nil }, "nodes/mux1: address: is missing, must be an address, or one of each family"},
		{func(n *lb.Node) { n.Addresses[1] = addr("10.10.0.12") }, "nodes/mux1: address[1]: 10.10.0.12: must be at most one address of each family"},
		{func(n *lb.Node) { n.Addresses[0] = addr("127.0.0.1") }, "nodes/mux1: address[0]: 127.0.0.1: must not be a loopback address"},
		{func(n *lb.Node) { n.Role, n.BGP, n.Capacity.VIPs = lb.RoleHost, nil, 1 }, "nodes/mux1: capacity: must not be given for a host: only muxes have VIPs"},
		{func(n *lb.Node) { n.Capacity.Packets = 1e9 + 1 }, "nodes/mux1: capacity.packets: 1000000001: must be 0 to 1000000000 a second, 0 for no limit"},
		{func(n *lb.Node) { n.BGP.ASN = 0 }, "nodes/mux1: bgp.asn: 0: must be 1 to 4294967294, but not 23456 or 65535"},
		{func(n *lb.Node) { n.BGP.ASN = 23456 }, "nodes/mux1: bgp.asn: 23456: must be 1 to 4294967294, but not 23456 or 65535"},
		{func(n *lb.Node) { n.BGP.RouterID = addr("2001:db8::1") }, "nodes/mux1: bgp.routerId: 2001:db8::1: must be in the form of an IPv4 address, and not 0.0.0.0"},
		{func(n *lb.Node) { n.Addresses = n.Addresses[1:] }, "nodes/mux1: bgp.routerId: is missing, must be in the form of an IPv4 address, because the node has none"},
		{func(n *lb.Node) { n.BGP.Peers = nil }, "nodes/mux1: bgp.peers: is missing, must have at least one peer"},
		{func(n *lb.Node) { n.BGP.Peers[0].Address = n.Addresses[0] }, "nodes/mux1: bgp.peers[0].address: 10.10.0.11: must not be an address of the node itself"},
		{func(n *lb.Node) { n.BGP.Peers = append(n.BGP.Peers, n.BGP.Peers[0]) }, "nodes/mux1: bgp.peers[1].address: 10.10.0.1: must differ from peers[0]"},
		{func(n *lb.Node) { n.BGP.Peers[0].Address = addr("224.0.0.1") }, "nodes/mux1: bgp.peers[0].address: 224.0.0.1: must not be a multicast address"},
		{func(n *lb.Node) { n.BGP.Peers[0].ASN = 4294967295 }, "nodes/mux1: bgp.peers[0].asn: 4294967295: must be 1 to 4294967294, but not 23456 or 65535"},
		{func(n *lb.Node) { n.BGP.Peers[0].PasswordFile = "secret" }, "nodes/mux1: bgp.peers[0].passwordFile: secret: must be an absolute path of printable ASCII without spaces"},
		{func(n *lb.Node) { n.BGP.Peers[0].BFD.Transmit = time.Millisecond }, "nodes/mux1: bgp.peers[0].bfd.transmit: 1ms: must be 10ms to 10s"},
		{func(n *lb.Node) { n.BGP.Peers[0].BFD.Receive = time.Minute }, "nodes/mux1: bgp.peers[0].bfd.receive: 1m: must be 10ms to 10s"},
		{func(n *lb.Node) { n.BGP.Peers[0].BFD.Multiplier = 256 }, "nodes/mux1: bgp.peers[0].bfd.multiplier: 256: must be 1 to 255"},
		{func(n *lb.Node) { n.BGP.Peers[0].TTLSecurity = 255 }, "nodes/mux1: bgp.peers[0].ttlSecurity: 255: must be 1 to 254 hops, 0 for none"},
		{func(n *lb.Node) { n.BGP.Peers[0].Multihop, n.BGP.Peers[0].BFD = 1, nil }, "nodes/mux1: bgp.peers[0].multihop: 1: must be 2 to 255, 0 for a router on the link"},
		{func(n *lb.Node) { n.BGP.Peers[0].Multihop, n.BGP.Peers[0].BFD = 256, nil }, "nodes/mux1: bgp.peers[0].multihop: 256: must be 2 to 255, 0 for a router on the link"},
		{func(n *lb.Node) { n.BGP.Peers[0].Multihop = 2 }, "nodes/mux1: bgp.peers[0].multihop: 2: must not come with bfd, which is of one hop (RFC 5881)"},
		{func(n *lb.Node) { n.BGP.Peers[0].Multihop, n.BGP.Peers[0].TTLSecurity = 2, 2 }, "nodes/mux1: bgp.peers[0].multihop: 2: must not come with ttlSecurity, which says how far away the router may be"},
		{func(n *lb.Node) { n.BGP.Peers[0].Multihop, n.BGP.Peers[0].ASN = 2, n.BGP.ASN }, "nodes/mux1: bgp.peers[0].multihop: 2: must be left out for a router of the same asn, which may be anywhere"},
	}
	for _, c := range cases {
		n := validNode()
		c.spoil(n)
		expect(t, lb.Validate(n), c.want)
	}
}

func TestNetworkRefusals(t *testing.T) {
	cases := []struct {
		spoil func(*lb.Network)
		want  string
	}{
		{func(n *lb.Network) { n.Encap = "gre" }, "networks/dc: encap: gre: must be ipip or gue"},
		{func(n *lb.Network) { n.Name = strings.Repeat("a", 64) }, "networks/" + strings.Repeat("a", 64) + ": name: " + strings.Repeat("a", 64) + ": must be a DNS label: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"},
		{func(n *lb.Network) { n.VIPs = nil }, "networks/dc: vips: is missing, must have at least one prefix"},
		{func(n *lb.Network) { n.VIPs[0] = prefix("203.0.113.1/24") }, "networks/dc: vips[0]: 203.0.113.1/24: must have no bits set after its length, write 203.0.113.0/24"},
		{func(n *lb.Network) { n.VIPs[0] = prefix("0.0.0.0/0") }, "networks/dc: vips[0]: 0.0.0.0/0: must not hold every address"},
		{func(n *lb.Network) { n.VIPs[0] = prefix("127.0.0.0/16") }, "networks/dc: vips[0]: 127.0.0.0/16: must not hold loopback addresses"},
		{func(n *lb.Network) { n.VIPs[0] = prefix("224.0.0.0/8") }, "networks/dc: vips[0]: 224.0.0.0/8: must not hold multicast addresses"},
		{func(n *lb.Network) { n.VIPs[1] = prefix("fe80::/64") }, "networks/dc: vips[1]: fe80::/64: must not hold link-local addresses"},
		{func(n *lb.Network) { n.VIPs[1] = netip.PrefixFrom(addr("::ffff:10.0.0.0"), 120) }, "networks/dc: vips[1]: ::ffff:10.0.0.0/120: must not be IPv4-mapped"},
		{func(n *lb.Network) { n.VIPs[1] = n.VIPs[0] }, "networks/dc: vips[1]: 203.0.113.0/24: must not be given twice"},
		{func(n *lb.Network) { n.Underlay[0] = prefix("10.1.0.0/8") }, "networks/dc: underlay[0]: 10.1.0.0/8: must have no bits set after its length, write 10.0.0.0/8"},
		{func(n *lb.Network) { n.MTU = 1279 }, "networks/dc: mtu: 1279: must be 1280 to 9216"},
		{func(n *lb.Network) { n.MTU = 9217 }, "networks/dc: mtu: 9217: must be 1280 to 9216"},
		{func(n *lb.Network) { n.TunnelSources = nil }, "networks/dc: tunnelSources: is empty, must have a prefix, or one of each family"},
		{func(n *lb.Network) { n.TunnelSources[0] = prefix("100.64.0.0/25") }, "networks/dc: tunnelSources[0]: 100.64.0.0/25: must be /8 to /24"},
		{func(n *lb.Network) { n.TunnelSources[0] = prefix("64.0.0.0/7") }, "networks/dc: tunnelSources[0]: 64.0.0.0/7: must be /8 to /24"},
		{func(n *lb.Network) { n.TunnelSources[1] = prefix("fd00::/48") }, "networks/dc: tunnelSources[1]: fd00::/48: must be a /64"},
		{func(n *lb.Network) { n.TunnelSources[1] = prefix("100.65.0.0/16") }, "networks/dc: tunnelSources[1]: 100.65.0.0/16: must be at most one prefix of each family"},
		{func(n *lb.Network) { n.TunnelSources[0] = prefix("203.0.112.0/20") }, "networks/dc: tunnelSources[0]: 203.0.112.0/20: must not overlap vips[0], 203.0.113.0/24"},
		{func(n *lb.Network) { n.TunnelSources[0] = prefix("10.9.0.0/16") }, "networks/dc: tunnelSources[0]: 10.9.0.0/16: must not overlap underlay[0], 10.0.0.0/8"},
		{func(n *lb.Network) { n.Switches = []netip.Prefix{prefix("10.30.0.1/24")} }, "networks/dc: switches[0]: 10.30.0.1/24: must have no bits set after its length, write 10.30.0.0/24"},
		{func(n *lb.Network) { n.Switches = []netip.Prefix{prefix("203.0.113.8/30")} }, "networks/dc: switches[0]: 203.0.113.8/30: must not overlap vips[0], 203.0.113.0/24"},
		{func(n *lb.Network) { n.Switches = []netip.Prefix{prefix("10.30.0.7/32"), prefix("100.64.3.0/24")} }, "networks/dc: switches[1]: 100.64.3.0/24: must not overlap tunnelSources[0], 100.64.0.0/16"},
	}
	for _, c := range cases {
		n := validNetwork()
		c.spoil(n)
		expect(t, lb.Validate(n), c.want)
	}
}

func TestStateRefusals(t *testing.T) {
	cases := []struct {
		spoil func(*lb.Service, *lb.Node, *lb.Network) []lb.Object
		want  string
	}{
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			return []lb.Object{&lb.Service{Name: "a", VIPs: s.VIPs[:1]}}
		},
			"services/a: vip[0]: 203.0.113.10: must be inside the vips of a Network, and there is no Network"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			s.VIPs[0] = addr("192.0.2.1")
			return []lb.Object{s, n}
		}, "services/web: vip[0]: 192.0.2.1: must be inside the vips of networks/dc: 203.0.113.0/24, 2001:db8:f::/64"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			return []lb.Object{s, n, &lb.Service{Name: "api", VIPs: s.VIPs[1:]}}
		}, "services/web: vip[1]: 2001:db8:f::10: must belong to one service, and services/api has it"},
		{func(_ *lb.Service, m *lb.Node, n *lb.Network) []lb.Object {
			return []lb.Object{m, &lb.Node{Name: "mux2", Addresses: m.Addresses[:1]}, n}
		}, "nodes/mux2: address[0]: 10.10.0.11: must belong to one node, and nodes/mux1 has it"},
		{func(_ *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			return []lb.Object{n, &lb.Network{Name: "other", VIPs: []netip.Prefix{prefix("192.0.2.0/24"), prefix("203.0.0.0/16")}}}
		}, "networks/other: vips[1]: 203.0.0.0/16: must not overlap vips[0] of networks/dc, 203.0.113.0/24"},
		{func(_ *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			return []lb.Object{n, &lb.Network{Name: "other", Underlay: []netip.Prefix{prefix("10.9.0.0/16")}}}
		}, "networks/other: underlay[0]: 10.9.0.0/16: must not overlap underlay[0] of networks/dc, 10.0.0.0/8"},
		{func(_ *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			return []lb.Object{n, &lb.Network{Name: "a", VIPs: []netip.Prefix{prefix("10.9.0.0/16")}}}
		}, "networks/dc: underlay[0]: 10.0.0.0/8: must not overlap vips[0] of networks/a, 10.9.0.0/16"},
		{func(_ *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			return []lb.Object{n, &lb.Network{Name: "other", VIPs: []netip.Prefix{prefix("100.64.7.0/24")}}}
		}, "networks/other: vips[0]: 100.64.7.0/24: must not overlap tunnelSources[0] of networks/dc, 100.64.0.0/16"},
		{func(_ *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			o := &lb.Network{Name: "other"}
			for i := range 63 {
				o.TunnelSources = append(o.TunnelSources, netip.PrefixFrom(netip.AddrFrom4([4]byte{101, byte(i)}), 16))
			}
			return []lb.Object{n, o}
		}, "networks/other: tunnelSources: 65 prefixes: must be at most 64 different ones in all Networks"},
		{func(_ *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			o := &lb.Network{Name: "other"}
			for i := range lb.MaxInside {
				o.Underlay = append(o.Underlay, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i / 16), byte(i % 16 * 16)}), 28))
			}
			return []lb.Object{n, o}
		}, "networks/other: underlay: 451 prefixes: must be at most 448 different IPv4 prefixes of vips, underlay and tunnelSources in all Networks"},
		{func(_ *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			for i := range 63 {
				n.Switches = append(n.Switches, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 30, byte(i)}), 24))
			}
			return []lb.Object{n}
		}, "networks/dc: switches: 65 prefixes: must be at most 64 different ones in all Networks, tunnelSources included"},
		{func(_ *lb.Service, m *lb.Node, n *lb.Network) []lb.Object {
			n.Switches = []netip.Prefix{prefix("10.10.0.0/24")}
			return []lb.Object{m, n}
		}, "nodes/mux1: address[0]: 10.10.0.11: must not be inside the switches of networks/dc: 10.10.0.0/24"},
		{func(_ *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			return []lb.Object{n, &lb.Network{Name: "other", Switches: []netip.Prefix{prefix("10.30.0.0/24"), prefix("203.0.113.0/28")}}}
		}, "networks/other: switches[1]: 203.0.113.0/28: must not overlap vips[0] of networks/dc, 203.0.113.0/24"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			s.VIPs[0] = addr("192.0.2.1")
			return []lb.Object{s, n, otherNetwork()}
		}, "services/web: vip[0]: 192.0.2.1: must be inside the vips of networks/dc: 203.0.113.0/24, 2001:db8:f::/64; or of networks/other: 198.18.0.0/16"},
		{func(_ *lb.Service, m *lb.Node, n *lb.Network) []lb.Object {
			m.Addresses[0] = addr("172.16.0.1")
			return []lb.Object{m, n, otherNetwork()}
		}, "nodes/mux1: address[1]: 2001:db8:10::11: must be inside the underlay of networks/other, where the node has its other address"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			backend(s).Host = addr("192.0.2.1")
			return []lb.Object{s, n, otherNetwork()}
		}, "services/web: endpoints[0].backends[0].host: 192.0.2.1: must be inside the underlay of networks/dc: 10.0.0.0/8, 2001:db8::/32; or of networks/other: 172.16.0.0/16"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			n.Encap, s.VIPs[0] = lb.EncapGUE, addr("198.18.0.1")
			first(s).Backends[1].DIPs[0], first(s).Backends[1].Port = addr("10.20.1.11"), 81
			return []lb.Object{s, n, otherNetwork()}
		}, "services/web: endpoints[0].backends[1].dip[0]: 10.20.1.11: must not share its outer destination 10.20.1.11 with backends[0] with encap ipip: gue tells them apart"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			s.Policy = "gold"
			return []lb.Object{s, n, &lb.Policy{Name: "silver"}}
		}, "services/web: policy: gold: must be the name of a Policy, and there is none of this name"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			s.Policy = "gold"
			return []lb.Object{s, n, &lb.Policy{Name: "gold", Tenant: "shop"}}
		}, "services/web: policy: gold: must be a Policy of tenant default or of none, and policies/gold is of shop"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			return []lb.Object{s, n, &lb.Tenant{Name: "default", Quotas: lb.Quotas{Services: 1, Endpoints: 3, Backends: 4}}}
		}, "tenants/default: quotas.endpoints: 4 endpoints: must be at most 3, the tenant's quota"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			return []lb.Object{s, n, &lb.Tenant{Name: "default", Quotas: lb.Quotas{Backends: 3}}, &lb.Tenant{Name: "shop", Quotas: lb.Quotas{Services: 1}}}
		}, "tenants/default: quotas.backends: 4 backends: must be at most 3, the tenant's quota"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			backend(s).Host = addr("192.0.2.1")
			return []lb.Object{s, n}
		}, "services/web: endpoints[0].backends[0].host: 192.0.2.1: must be inside the underlay of networks/dc: 10.0.0.0/8, 2001:db8::/32"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			backend(s).DIPs[0] = addr("203.0.113.11")
			return []lb.Object{s, n}
		}, "services/web: endpoints[0].backends[0].dip[0]: 203.0.113.11: must not be inside the vips of networks/dc: 203.0.113.0/24"},
		{func(_ *lb.Service, m *lb.Node, n *lb.Network) []lb.Object {
			m.Addresses[0] = addr("100.64.1.1")
			return []lb.Object{m, n}
		}, "nodes/mux1: address[0]: 100.64.1.1: must not be inside the tunnelSources of networks/dc: 100.64.0.0/16"},
		{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
			n.TunnelSources = n.TunnelSources[:1]
			first(s).Backends[1].Host = addr("2001:db8:20:2::1")
			return []lb.Object{s, n}
		}, "services/web: endpoints[0].backends[1].dip[0]: 10.20.2.11: needs an IPv6 prefix in the tunnelSources of networks/dc"},
	}
	cases = append(cases, struct {
		spoil func(*lb.Service, *lb.Node, *lb.Network) []lb.Object
		want  string
	}{func(s *lb.Service, _ *lb.Node, n *lb.Network) []lb.Object {
		first(s).Backends[1].DIPs[0], first(s).Backends[1].Port = addr("10.20.1.11"), 81
		return []lb.Object{s, n}
	}, "services/web: endpoints[0].backends[1].dip[0]: 10.20.1.11: must not share its outer destination 10.20.1.11 with backends[0] with encap ipip: gue tells them apart"})
	for _, c := range cases {
		s, m, n := validService(), validNode(), validNetwork()
		expect(t, lb.ValidateState(c.spoil(s, m, n)), c.want)
	}
}

// TestHostWithoutNode: a host that is no node's address is valid, because servers that own the VIP
// decapsulate themselves.
func TestHostWithoutNode(t *testing.T) {
	if v := lb.ValidateState([]lb.Object{validService(), validNetwork()}); v != nil {
		t.Error(v)
	}
}

// TestNoUnderlay: without an underlay DIPs, hosts and nodes may be anywhere except in the VIPs and
// tunnel sources.
func TestNoUnderlay(t *testing.T) {
	s, n := validService(), validNetwork()
	n.Underlay = nil
	backend(s).Host = addr("192.0.2.77")
	if v := lb.ValidateState([]lb.Object{s, n}); v != nil {
		t.Error(v)
	}
}

func TestObjectsTwice(t *testing.T) {
	expect(t, lb.Validate(validService(), validNode(), validService()), "services/web: must not be given twice")
}

// expect requires exactly one violation.
func expect(t *testing.T, found []lb.Violation, want string) {
	t.Helper()
	if len(found) != 1 || found[0].String() != want {
		t.Errorf("\n got: %v\nwant: %s", texts(found), want)
	}
}

func texts(found []lb.Violation) string {
	out := make([]string, len(found))
	for i, v := range found {
		out[i] = v.String()
	}
	return fmt.Sprint(strings.Join(out, "\n      "))
}
