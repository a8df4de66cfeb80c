package lb_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestRoundTrip: Parse reads back the objects that Marshal writes.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		objects := rapid.SliceOfN(rapid.OneOf(service(), node(), network(), tenant(), policy()), 1, 4).Draw(t, "objects")
		for i, o := range objects {
			rename(o, fmt.Sprintf("%s-%d", o.ObjectName()[:min(50, len(o.ObjectName()))], i))
		}
		if faults := lb.Validate(objects...); len(faults) > 0 {
			t.Fatalf("generator made what is refused: %v", texts(faults))
		}
		text := lb.Marshal(objects...)
		got, err := lb.Parse(bytes.NewReader(text), "generated")
		if err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		if !reflect.DeepEqual(got, objects) {
			t.Fatalf("got %s\nwant %s", lb.Marshal(got...), text)
		}
		for i := range got {
			if !lb.Equal(got[i], objects[i]) {
				t.Fatal("not Equal")
			}
			lb.SetDefaults(got[i])
		}
		if !reflect.DeepEqual(got, objects) {
			t.Fatal("SetDefaults changes what Parse has filled in")
		}
	})
}

// TestStateOrder: ValidateState does not depend on the order of the objects, and does not panic.
func TestStateOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		objects := rapid.SliceOfN(rapid.OneOf(service(), node(), network(), tenant(), policy()), 0, 6).Draw(t, "objects")
		for i, o := range objects {
			rename(o, fmt.Sprintf("n%d", i))
		}
		shuffled := rapid.Permutation(objects).Draw(t, "shuffled")
		if a, b := lb.ValidateState(objects), lb.ValidateState(shuffled); !reflect.DeepEqual(a, b) {
			t.Fatalf("%v\nbut shuffled\n%v", a, b)
		}
	})
}

// FuzzParse: Parse does not panic on any text, and Validate accepts its objects, before and after
// another round trip.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/golden/*.yaml", "testdata/refused/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("no seeds in %s: %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	for _, text := range []string{"", "---", "...\n---\n", "{", "? ", "- - - -", "&a *a", "a: |\n", "!!map {}", "kind: Node\nname: \"\\x00\"", "[[[[[[[[", "\xef\xbb\xbf", "<<: *x", "kind:\n- Service"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		objects, err := lb.Parse(bytes.NewReader(text), "fuzz")
		if err != nil {
			if len(objects) > 0 {
				t.Fatal("objects beside an error")
			}
			return
		}
		if faults := lb.Validate(objects...); len(faults) > 0 {
			t.Fatalf("accepted but invalid: %v", texts(faults))
		}
		canonical := lb.Marshal(objects...)
		again, err := lb.Parse(bytes.NewReader(canonical), "canonical")
		if err != nil {
			t.Fatalf("canonical form refused: %v\n%s", err, canonical)
		}
		if !reflect.DeepEqual(again, objects) {
			t.Fatalf("canonical form differs:\n%s", canonical)
		}
		lb.ValidateState(objects)
	})
}

func rename(o lb.Object, name string) {
	switch o := o.(type) {
	case *lb.Service:
		o.Name = name
	case *lb.Node:
		o.Name = name
	case *lb.Network:
		o.Name = name
	case *lb.Tenant:
		o.Name = name
	case *lb.Policy:
		o.Name = name
	}
}

// Generators of valid objects.

func label() *rapid.Generator[string] {
	return rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?`)
}

// v4 returns the address with number i in a block, so that addresses differ.
func v4(block byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, block, byte(i >> 8), byte(i)})
}
func v6(block byte, i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 4: block, 14: byte(i >> 8), 15: byte(i)})
}

func duration(low, high time.Duration) *rapid.Generator[time.Duration] {
	return rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(int64(low), int64(high)).Draw(t, "duration"))
	})
}

func service() *rapid.Generator[lb.Object] {
	return rapid.Custom(func(t *rapid.T) lb.Object {
		s := &lb.Service{Name: label().Draw(t, "name"), Tenant: label().Draw(t, "tenant")}
		both := rapid.Bool().Draw(t, "both families")
		s.VIPs = []netip.Addr{v4(0, 1)}
		if both {
			s.VIPs = append(s.VIPs, v6(0, 1))
		}
		s.Policy = rapid.StringMatching(`([a-z0-9]{1,8})?`).Draw(t, "policy")
		s.Limits, s.Sources, s.Placement = limits(t), sources(t), placement(t)
		count := rapid.IntRange(1, 3).Draw(t, "endpoints")
		for i := range count {
			s.Endpoints = append(s.Endpoints, endpoint(t, uint16(i+1)*1000, both))
		}
		return s
	})
}

// limits returns nil half of the time; so do sources and placement.
func limits(t *rapid.T) *lb.Limits {
	if rapid.Bool().Draw(t, "no limits") {
		return nil
	}
	return &lb.Limits{
		Packets: rapid.Uint64Range(0, lb.MaxRate).Draw(t, "packets"), Connections: rapid.Uint64Range(0, lb.MaxRate).Draw(t, "connections"),
		Ping: rapid.Uint64Range(1, lb.MaxRate).Draw(t, "ping"),
	}
}

func sources(t *rapid.T) *lb.Sources {
	if rapid.Bool().Draw(t, "no sources") {
		return nil
	}
	s := &lb.Sources{}
	for i := range rapid.IntRange(0, 3).Draw(t, "sources") {
		p := netip.PrefixFrom(v4(7, i), 32)
		if rapid.Bool().Draw(t, "allow") {
			s.Allow = append(s.Allow, p)
		} else {
			s.Deny = append(s.Deny, p)
		}
	}
	return s
}

func placement(t *rapid.T) *lb.Placement {
	if rapid.Bool().Draw(t, "no placement") {
		return nil
	}
	return &lb.Placement{
		Replicas: rapid.Uint32Range(0, lb.MaxReplicas).Draw(t, "replicas"), By: rapid.SampledFrom([]string{lb.PlaceByVIPs, lb.PlaceByLoad}).Draw(t, "by"),
	}
}

func tenant() *rapid.Generator[lb.Object] {
	return rapid.Custom(func(t *rapid.T) lb.Object {
		quota := func(name string) uint32 {
			return rapid.Uint32().Draw(t, name) * rapid.Uint32Range(0, 1).Draw(t, "limited")
		}
		return &lb.Tenant{
			Name: label().Draw(t, "name"), Weight: rapid.Uint32Range(1, lb.MaxTenantWeight).Draw(t, "weight"),
			Quotas: lb.Quotas{Services: quota("services"), Endpoints: quota("endpoints"), Backends: quota("backends"), Changes: quota("changes")},
		}
	})
}

func policy() *rapid.Generator[lb.Object] {
	return rapid.Custom(func(t *rapid.T) lb.Object {
		return &lb.Policy{
			Name: label().Draw(t, "name"), Tenant: rapid.StringMatching(`([a-z0-9]{1,8})?`).Draw(t, "tenant"),
			Limits: limits(t), Sources: sources(t), Placement: placement(t),
		}
	})
}

func endpoint(t *rapid.T, port uint16, both bool) lb.Endpoint {
	e := lb.Endpoint{
		Protocol: rapid.SampledFrom([]lb.Protocol{lb.TCP, lb.UDP}).Draw(t, "protocol"),
		Port:     port, Path: "dsr", Affinity: rapid.SampledFrom([]string{"hash", "flow"}).Draw(t, "affinity"), Scheduler: "maglev",
		Rewrite:   rapid.SampledFrom([]lb.Rewrite{lb.RewriteHost, lb.RewriteNone}).Draw(t, "rewrite"),
		Fragments: lb.FragmentsDrop, Encap: rapid.SampledFrom([]string{"", "ipip", "gue"}).Draw(t, "encap"),
		BackupBelow: rapid.Uint8Range(1, 100).Draw(t, "backup below"), FailOpen: rapid.Bool().Draw(t, "fail open"),
		SlowStart: duration(0, lb.MaxSlowStart).Draw(t, "slow start"), DrainTimeout: duration(0, lb.MaxDrainTimeout).Draw(t, "drain timeout"),
	}
	if rapid.Bool().Draw(t, "range") {
		e.PortEnd = port + rapid.Uint16Range(1, 500).Draw(t, "ports")
	}
	if e.Protocol == lb.TCP {
		e.RepairWindow = new(duration(0, lb.MaxRepairWindow).Draw(t, "repair window"))
	}
	if e.Rewrite == lb.RewriteHost && rapid.Bool().Draw(t, "host idle") {
		e.HostIdle = lb.HostIdle{
			Established: duration(time.Hour, lb.MaxHostIdle).Draw(t, "established"), Opening: duration(lb.MinIdle, time.Hour).Draw(t, "opening"),
			Closing: duration(lb.MinIdle, lb.MaxHostIdle).Draw(t, "closing"), UDP: duration(lb.MinIdle, lb.MaxHostIdle).Draw(t, "udp"),
		}.Of(e.Protocol)
	}
	if rapid.Bool().Draw(t, "load") {
		e.Load.Stale = duration(2*time.Minute, lb.MaxLoadStale).Draw(t, "stale")
		if rapid.Bool().Draw(t, "asked") {
			e.Load.HTTP = lb.LoadHTTP{Path: "/load", Host: rapid.SampledFrom([]string{"", "load.example"}).Draw(t, "host"), Port: rapid.Uint16Range(1, 65535).Draw(t, "load port")}
			e.Load.Interval = duration(lb.MinLoadInterval, lb.MaxLoadInterval).Draw(t, "interval")
			e.Load.Timeout = duration(lb.MinLoadTimeout, lb.MaxLoadTimeout).Draw(t, "timeout")
		}
	}
	carrying(t, &e)
	e.OnePacket = e.Protocol == lb.UDP && e.QUIC == nil && rapid.Bool().Draw(t, "one packet")
	if e.KeepsFlows() {
		e.Idle.Untrusted = duration(lb.MinIdle, time.Minute).Draw(t, "untrusted")
		e.Idle.Trusted = duration(time.Minute, lb.MaxIdle).Draw(t, "trusted")
	}
	if e.KeepsFlows() && rapid.Bool().Draw(t, "scheduled") {
		e.Scheduler = rapid.SampledFrom([]string{"maglev", "random", "round-robin", "weighted-round-robin", "adaptive", "least-connections", "p2c"}).Draw(t, "scheduler")
		if e.Loaded() {
			e.Schedule.By = rapid.SampledFrom([]string{"connections", "cpu", "load"}).Draw(t, "by")
		}
	}
	if !e.OnePacket && !e.Cookies() && e.Scheduler == "maglev" && rapid.Bool().Draw(t, "source") {
		e.Source = &lb.SourceAffinity{Prefix4: rapid.Uint8Range(1, 32).Draw(t, "prefix4"), Prefix6: rapid.Uint8Range(1, 128).Draw(t, "prefix6")}
		if e.KeepsFlows() {
			e.Source.For = duration(lb.MinIdle, lb.MaxIdle).Draw(t, "for")
		}
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "backends") {
		b := lb.Backend{DIPs: []netip.Addr{v4(1, i)}, Port: port, Host: v4(2, i), Weight: rapid.Uint16Range(0, 1000).Draw(t, "weight"), Drain: rapid.Bool().Draw(t, "drain"), Backup: rapid.Bool().Draw(t, "backup")}
		if e.PortEnd != 0 {
			b.Port = 0
		} else if e.Rewrite == lb.RewriteHost {
			b.Port = rapid.Uint16Range(1, 65535).Draw(t, "port")
		}
		if both {
			b.DIPs = append(b.DIPs, v6(1, i))
		}
		if rapid.Bool().Draw(t, "host of the other family") {
			b.Host = v6(2, i)
		}
		e.Backends = append(e.Backends, b)
	}
	e.Health = health(t, &e)
	translated(t, &e)
	return e
}

// translated sets path nat on some of the endpoints that can have it.
func translated(t *rapid.T, e *lb.Endpoint) {
	if e.Rewrite != lb.RewriteHost || e.OnePacket || e.Loaded() || e.Affinity == lb.AffinityHash || e.Health.ByHost() || e.QUIC != nil ||
		slices.ContainsFunc(e.Health.Checks, func(c lb.Check) bool { return c.Through == lb.ThroughTunnel }) || !rapid.Bool().Draw(t, "path nat") {
		return
	}
	e.Path, e.Encap, e.RepairWindow, e.HostIdle, e.Load = lb.PathNAT, "", nil, lb.HostIdle{}, lb.Load{}
	if e.StampsTCP() {
		e.Cookie.Form = rapid.SampledFrom([]string{lb.CookieSplitR, lb.CookieSplitZ}).Draw(t, "split")
	}
	if rapid.Bool().Draw(t, "without hosts") {
		for i := range e.Backends {
			e.Backends[i].Host = netip.Addr{}
		}
	}
}

// carrying makes the endpoint one whose packets carry their member, one of QUIC, or neither.
func carrying(t *rapid.T, e *lb.Endpoint) {
	if e.Protocol == lb.UDP && rapid.Bool().Draw(t, "quic") {
		e.QUIC = &lb.QUIC{Format: "none"}
	}
	if e.Protocol == lb.UDP && e.QUIC == nil || !rapid.Bool().Draw(t, "cookie") {
		return
	}
	if e.Rewrite == lb.RewriteNone && e.QUIC == nil && (e.Protocol != lb.TCP || e.PortEnd != 0) {
		return
	}
	e.Affinity = lb.AffinityCookie
	if e.Protocol == lb.TCP {
		if e.Cookie.Form = lb.CookieEVC; e.Rewrite == lb.RewriteNone {
			e.Cookie.Form = lb.CookieCO
		}
		return
	}
	if e.QUIC.Format = rapid.SampledFrom([]string{"quiclb", "quiclb-plain", "msquic", "mvfst"}).Draw(t, "format"); e.QUIC.HasLengths() {
		e.QUIC.ServerIDLength = rapid.Uint8Range(lb.MinServerIDLength, lb.MaxServerIDLength).Draw(t, "server id")
		e.QUIC.NonceLength = rapid.Uint8Range(lb.MinNonceLength, lb.MaxServerIDAndNonce-e.QUIC.ServerIDLength).Draw(t, "nonce")
	}
}

func node() *rapid.Generator[lb.Object] {
	return rapid.Custom(func(t *rapid.T) lb.Object {
		n := &lb.Node{
			Name: label().Draw(t, "name"), Role: rapid.SampledFrom([]lb.Role{lb.RoleMux, lb.RoleHost}).Draw(t, "role"),
			Zone: rapid.StringMatching(`([a-z0-9]{1,8})?`).Draw(t, "zone"), Drain: rapid.Bool().Draw(t, "drain"),
			Addresses: rapid.SampledFrom([][]netip.Addr{{v4(3, 1)}, {v6(3, 1)}, {v6(3, 1), v4(3, 1)}}).Draw(t, "addresses"),
		}
		if n.Role == lb.RoleMux {
			n.Capacity = lb.Capacity{VIPs: rapid.Uint32().Draw(t, "most vips"), Packets: rapid.Uint64Range(0, lb.MaxRate).Draw(t, "most packets")}
		}
		if n.Role == lb.RoleMux && rapid.Bool().Draw(t, "translates") {
			n.NAT = &lb.NAT{Addresses: rapid.SampledFrom([][]netip.Addr{{v4(6, 1)}, {v6(6, 1)}, {v6(6, 1), v4(6, 1), v4(6, 2)}}).Draw(t, "nat")}
			n.NAT.Low = rapid.Uint16Range(1, 65534).Draw(t, "low")
			n.NAT.High = rapid.Uint16Range(n.NAT.Low+1, 65535).Draw(t, "high")
		}
		if n.Role == lb.RoleHost || rapid.Bool().Draw(t, "without BGP") {
			return n
		}
		n.BGP = &lb.BGP{ASN: rapid.Uint32Range(1, 20000).Draw(t, "asn"), RouterID: v4(4, rapid.IntRange(1, 9).Draw(t, "router id"))}
		for i := range rapid.IntRange(1, 3).Draw(t, "peers") {
			p := lb.BGPPeer{Address: v6(5, i), ASN: 4200000000, PasswordFile: rapid.StringMatching(`(/[!-~]{1,20})?`).Draw(t, "file"), TTLSecurity: rapid.Uint32Range(0, 254).Draw(t, "ttl security")}
			if rapid.Bool().Draw(t, "bfd") {
				p.BFD = &lb.BFD{
					Transmit: duration(10*time.Millisecond, 10*time.Second).Draw(t, "transmit"),
					Receive:  duration(10*time.Millisecond, 10*time.Second).Draw(t, "receive"), Multiplier: rapid.Uint32Range(1, 255).Draw(t, "multiplier"),
				}
			}
			n.BGP.Peers = append(n.BGP.Peers, p)
		}
		return n
	})
}

func network() *rapid.Generator[lb.Object] {
	return rapid.Custom(func(t *rapid.T) lb.Object {
		n := &lb.Network{
			Name: label().Draw(t, "name"), MTU: rapid.Uint32Range(lb.MinMTU, lb.MaxMTU).Draw(t, "mtu"),
			Encap:         rapid.SampledFrom([]string{"ipip", "gue"}).Draw(t, "encap"),
			VIPs:          rapid.SampledFrom([][]netip.Prefix{{prefix("10.0.0.0/24")}, {prefix("10.0.0.0/24"), prefix("2001:db8::/40")}}).Draw(t, "vips"),
			TunnelSources: rapid.SampledFrom([][]netip.Prefix{{prefix("100.64.0.0/16")}, {prefix("fd00::/64"), prefix("100.0.0.0/8")}}).Draw(t, "tunnel sources"),
		}
		if rapid.Bool().Draw(t, "with underlay") {
			n.Underlay = []netip.Prefix{prefix("10.0.0.0/8"), prefix("2001:db8::/32")}
		}
		return n
	})
}
