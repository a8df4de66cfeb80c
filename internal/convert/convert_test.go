package convert

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

func addr(rt *rapid.T, label string) netip.Addr {
	if rapid.Bool().Draw(rt, label+" is v4") {
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(rt, label)))
	}
	b := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(rt, label))
	b[0] = 0x20 // never IPv4-mapped
	return netip.AddrFrom16(b)
}

func some[T any](rt *rapid.T, label string, least, most int, f func(*rapid.T) T) []T {
	var out []T
	for range rapid.IntRange(least, most).Draw(rt, label) {
		out = append(out, f(rt))
	}
	return out
}

func word(rt *rapid.T, label string) uint16 { return rapid.Uint16().Draw(rt, label) }

func name(rt *rapid.T) string { return rapid.StringMatching(`[a-z]{1,8}`).Draw(rt, "name") }

func randomDuration(rt *rapid.T, label string) time.Duration {
	return time.Duration(rapid.Int64Range(1, 1<<40).Draw(rt, label))
}

func randomObject(rt *rapid.T) lb.Object {
	var o lb.Object
	switch rapid.IntRange(0, 4).Draw(rt, "kind") {
	case 0:
		o = &lb.Service{
			Name: name(rt), Tenant: name(rt), VIPs: some(rt, "vips", 1, 3, func(rt *rapid.T) netip.Addr { return addr(rt, "vip") }),
			Endpoints: some(rt, "endpoints", 1, 3, randomEndpoint), Policy: name(rt),
			Limits: maybe(rt, randomLimits), Sources: maybe(rt, randomSources), Placement: maybe(rt, randomPlacement),
		}
	case 3:
		o = &lb.Tenant{
			Name: name(rt), Weight: rapid.Uint32().Draw(rt, "weight"), VNI: rapid.Uint32().Draw(rt, "vni"),
			Quotas: lb.Quotas{
				Services: rapid.Uint32().Draw(rt, "services"), Endpoints: rapid.Uint32().Draw(rt, "endpoints"),
				Backends: rapid.Uint32().Draw(rt, "backends"), Changes: rapid.Uint32().Draw(rt, "changes"),
			},
		}
	case 4:
		o = &lb.Policy{
			Name: name(rt), Tenant: name(rt), Limits: maybe(rt, randomLimits), Sources: maybe(rt, randomSources),
			Placement: maybe(rt, randomPlacement),
		}
	case 1:
		n := &lb.Node{
			Name: name(rt), Role: rapid.SampledFrom([]lb.Role{lb.RoleMux, lb.RoleHost}).Draw(rt, "role"), Zone: name(rt),
			Addresses: some(rt, "addresses", 1, 2, func(rt *rapid.T) netip.Addr { return addr(rt, "address") }), Drain: rapid.Bool().Draw(rt, "drain"),
			Capacity: lb.Capacity{VIPs: rapid.Uint32().Draw(rt, "most vips"), Packets: rapid.Uint64().Draw(rt, "most packets")},
		}
		if rapid.Bool().Draw(rt, "nat") {
			low := rapid.Uint16Range(1, 65534).Draw(rt, "low")
			n.NAT = &lb.NAT{
				Addresses: some(rt, "nat addresses", 1, 2, func(rt *rapid.T) netip.Addr { return addr(rt, "nat address") }),
				Low:       low, High: rapid.Uint16Range(low+1, 65535).Draw(rt, "high"),
			}
		}
		if rapid.Bool().Draw(rt, "bgp") {
			n.BGP = &lb.BGP{ASN: rapid.Uint32().Draw(rt, "asn"), RouterID: netip.MustParseAddr("10.0.0.1"), Peers: some(rt, "peers", 0, 2, randomPeer)}
		}
		o = n
	default:
		o = &lb.Network{
			Name: name(rt), Encap: randomEncap(rt), MTU: rapid.Uint32Range(1280, 9000).Draw(rt, "mtu"), VIPs: some(rt, "vips", 1, 2, prefix),
			Underlay: some(rt, "underlay", 1, 2, prefix), TunnelSources: some(rt, "sources", 1, 2, prefix),
		}
	}
	lb.SetDefaults(o)
	return o
}

func prefix(rt *rapid.T) netip.Prefix {
	a := addr(rt, "prefix")
	return netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(rt, "bits")).Masked()
}

func randomLimits(rt *rapid.T) lb.Limits {
	return lb.Limits{Packets: rapid.Uint64().Draw(rt, "packets"), Connections: rapid.Uint64().Draw(rt, "connections"), Ping: rapid.Uint64().Draw(rt, "ping")}
}

func randomSources(rt *rapid.T) lb.Sources {
	return lb.Sources{Allow: some(rt, "allow", 0, 3, prefix), Deny: some(rt, "deny", 0, 3, prefix)}
}

func randomPlacement(rt *rapid.T) lb.Placement {
	return lb.Placement{Replicas: rapid.Uint32().Draw(rt, "replicas"), By: rapid.SampledFrom([]string{"", lb.PlaceByVIPs, lb.PlaceByLoad}).Draw(rt, "by")}
}

// maybe returns nil half of the time.
func maybe[T any](rt *rapid.T, draw func(*rapid.T) T) *T {
	if rapid.Bool().Draw(rt, "unsaid") {
		return nil
	}
	v := draw(rt)
	return &v
}

func randomEncap(rt *rapid.T) string {
	return rapid.SampledFrom([]string{"", lb.EncapIPIP, lb.EncapGUE}).Draw(rt, "encap")
}

func randomSource(rt *rapid.T) *lb.SourceAffinity {
	if rapid.Bool().Draw(rt, "no source") {
		return nil
	}
	return &lb.SourceAffinity{
		Prefix4: rapid.Uint8().Draw(rt, "prefix4"), Prefix6: rapid.Uint8().Draw(rt, "prefix6"), For: randomDuration(rt, "for"),
	}
}

// randomHostIdle sets each time half of the time.
func randomHostIdle(rt *rapid.T) (h lb.HostIdle) {
	for _, d := range []*time.Duration{&h.Established, &h.Opening, &h.Closing, &h.UDP, &h.Other} {
		if rapid.Bool().Draw(rt, "said") {
			*d = randomDuration(rt, "host idle")
		}
	}
	return h
}

// randomLoad sets each part half of the time.
func randomLoad(rt *rapid.T) (l lb.Load) {
	for _, d := range []*time.Duration{&l.Interval, &l.Timeout, &l.Stale} {
		if rapid.Bool().Draw(rt, "said") {
			*d = randomDuration(rt, "load")
		}
	}
	if rapid.Bool().Draw(rt, "asked") {
		l.HTTP = lb.LoadHTTP{Path: "/" + name(rt), Host: rapid.SampledFrom([]string{"", "load.example"}).Draw(rt, "host"), Port: rapid.Uint16().Draw(rt, "load port")}
	}
	return l
}

// ports returns a single port, a range, or all.
func ports(rt *rapid.T) (port, end uint16) {
	low := rapid.Uint16Range(1, 65534).Draw(rt, "port")
	switch rapid.IntRange(0, 2).Draw(rt, "ports") {
	case 0:
		return low, 0
	case 1:
		return low, rapid.Uint16Range(low+1, 65535).Draw(rt, "last port")
	}
	return 0, lb.AllPorts
}

// randomQUIC returns nil half of the time.
func randomQUIC(rt *rapid.T) *lb.QUIC {
	return maybe(rt, func(rt *rapid.T) lb.QUIC {
		return lb.QUIC{
			Format:         rapid.SampledFrom([]string{lb.QUICLB, lb.QUICLBPlain, lb.QUICMsquic, lb.QUICMvfst, lb.QUICNone}).Draw(rt, "format"),
			ServerIDLength: rapid.Uint8Min(1).Draw(rt, "server id"), NonceLength: rapid.Uint8Min(1).Draw(rt, "nonce"),
		}
	})
}

func randomEndpoint(rt *rapid.T) lb.Endpoint {
	e := simpleEndpoint(rt)
	e.Scheduler = rapid.SampledFrom([]string{lb.SchedulerMaglev, lb.SchedulerRandom, lb.SchedulerAdaptive, lb.SchedulerP2C}).Draw(rt, "scheduler")
	e.Schedule.By = rapid.SampledFrom([]string{"", lb.ByCPU}).Draw(rt, "by")
	e.Cookie.Form = rapid.SampledFrom([]string{"", lb.CookieEVC, lb.CookieCO}).Draw(rt, "form")
	e.Track = rapid.Bool().Draw(rt, "track")
	e.Unhealthy = rapid.SampledFrom([]string{"", lb.UnhealthyKeep, lb.UnhealthyMove}).Draw(rt, "unhealthy")
	if e.Path = rapid.SampledFrom([]string{lb.PathDSR, lb.PathNAT}).Draw(rt, "path"); e.Translated() {
		e.Backends[0].Host = netip.Addr{}
	}
	if e.QUIC = randomQUIC(rt); e.QUIC != nil {
		e.Protocol = lb.UDP
	}
	return e
}

func simpleEndpoint(rt *rapid.T) lb.Endpoint {
	port, end := ports(rt)
	return lb.Endpoint{
		Protocol: rapid.SampledFrom([]lb.Protocol{lb.TCP, lb.UDP, lb.AnyProtocol}).Draw(rt, "protocol"), Port: port, PortEnd: end,
		Affinity: rapid.SampledFrom([]string{lb.AffinityFlow, lb.AffinityHash, lb.AffinityCookie}).Draw(rt, "affinity"), Source: randomSource(rt),
		OnePacket: rapid.Bool().Draw(rt, "one packet"), Idle: lb.Idle{Untrusted: randomDuration(rt, "untrusted"), Trusted: randomDuration(rt, "trusted")},
		Fragments: rapid.SampledFrom([]string{lb.FragmentsDrop, lb.Fragments3Tuple}).Draw(rt, "fragments"), Encap: randomEncap(rt),
		BackupBelow: rapid.Uint8().Draw(rt, "backup below"), FailOpen: rapid.Bool().Draw(rt, "fail open"),
		SlowStart: randomDuration(rt, "slow start"), DrainTimeout: randomDuration(rt, "drain timeout"),
		RepairWindow: rapid.SampledFrom([]*time.Duration{nil, new(time.Duration(0)), new(time.Minute)}).Draw(rt, "repair window"),
		HostIdle:     randomHostIdle(rt), Load: randomLoad(rt),
		Rewrite: rapid.SampledFrom([]lb.Rewrite{lb.RewriteHost, lb.RewriteNone}).Draw(rt, "rewrite"), Health: health(rt),
		Backends: some(rt, "backends", 1, 3, func(rt *rapid.T) lb.Backend {
			return lb.Backend{
				DIPs: some(rt, "dips", 1, 2, func(rt *rapid.T) netip.Addr { return addr(rt, "dip") }), Port: max(1, word(rt, "backend port")),
				Host: addr(rt, "host"), Weight: word(rt, "weight"), Drain: rapid.Bool().Draw(rt, "drain"),
				Backup: rapid.Bool().Draw(rt, "backup"),
			}
		}),
	}
}

func randomPeer(rt *rapid.T) lb.BGPPeer {
	p := lb.BGPPeer{Address: addr(rt, "peer"), ASN: rapid.Uint32().Draw(rt, "peer asn"), PasswordFile: name(rt), TTLSecurity: rapid.Uint32().Draw(rt, "ttl security"), Multihop: rapid.Uint32().Draw(rt, "multihop")}
	if rapid.Bool().Draw(rt, "bfd") {
		p.BFD = &lb.BFD{Transmit: randomDuration(rt, "transmit"), Receive: randomDuration(rt, "receive"), Multiplier: rapid.Uint32Range(1, 9).Draw(rt, "multiplier")}
	}
	return p
}

func TestObjectsComeBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := randomObject(rt)
		msg := ToObject(want)
		for _, pass := range []func(*apiv1.Object) *apiv1.Object{throughProto, throughJSON} {
			got, faults := FromObject(pass(msg), 0)
			if len(faults) > 0 || !reflect.DeepEqual(got, want) {
				rt.Fatalf("came back as %+v %v, want %+v", got, faults, want)
			}
		}
	})
}

func throughProto(o *apiv1.Object) *apiv1.Object {
	b, err := proto.Marshal(o)
	out := &apiv1.Object{}
	if err != nil || proto.Unmarshal(b, out) != nil {
		panic(err)
	}
	return out
}

func throughJSON(o *apiv1.Object) *apiv1.Object {
	b, err := protojson.Marshal(o)
	out := &apiv1.Object{}
	if err != nil || protojson.Unmarshal(b, out) != nil {
		panic(err)
	}
	return out
}

func endpointKey(rt *rapid.T) lb.EndpointKey {
	port, end := ports(rt)
	return lb.EndpointKey{
		VNI: rapid.Uint32Range(0, 1<<24-1).Draw(rt, "vni"), VIP: addr(rt, "vip"), Port: port, PortEnd: end,
		Protocol: rapid.SampledFrom([]lb.Protocol{lb.TCP, lb.UDP, lb.AnyProtocol}).Draw(rt, "protocol"),
	}
}

func TestVerdictsComeBack(t *testing.T) {
	id := func(rt *rapid.T) uint16 { return word(rt, "member") }
	rapid.Check(t, func(rt *rapid.T) {
		want := plan.Verdicts{Full: rapid.Bool().Draw(rt, "full"), Endpoints: []plan.EndpointVerdicts{}}
		for range rapid.IntRange(0, 3).Draw(rt, "endpoints") {
			e := plan.EndpointVerdicts{
				Key: endpointKey(rt), Alive: some(rt, "alive", 0, 3, id), Dead: some(rt, "dead", 0, 3, id), Unknown: some(rt, "unknown", 0, 3, id),
			}
			for _, m := range slices.Concat(e.Alive, e.Dead) {
				if words := rapid.SampledFrom([]string{"", "status 200", "connection refused"}).Draw(rt, "words"); words != "" {
					if e.Words == nil {
						e.Words = map[uint16]string{}
					}
					e.Words[m] = words
				}
			}
			want.Endpoints = append(want.Endpoints, e)
		}
		got, err := FromHealth(ToHealth(want))
		if err != nil || !reflect.DeepEqual(got, want) {
			rt.Fatalf("came back as\n%+v %v, want\n%+v", got, err, want)
		}
	})
}

func TestVerdictsThatAreNone(t *testing.T) {
	for _, e := range []*apiv1.EndpointHealth{
		{Vip: "nowhere", Protocol: "tcp", Port: 80},
		{Vip: "203.0.113.1", Protocol: "tcp", Port: 80, Dead: []uint32{1, 65536}},
	} {
		if v, err := FromHealth(&apiv1.HealthReport{Endpoints: []*apiv1.EndpointHealth{e}}); err == nil {
			t.Errorf("%v: taken as %+v", e, v)
		}
	}
}

func TestPlansComeBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := plan.Plan{
			Node: *nodeOf(rt), MTU: 1500, TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")},
			VIPs: some(rt, "vips", 0, 2, prefix), Underlay: some(rt, "underlay", 0, 2, prefix),
			RingKeys: []plan.Key{{ID: 1, Key: [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(rt, "key"))}},
		}
		want.Services = append(want.Services, plan.Service{
			Name: name(rt), VIPs: []netip.Addr{addr(rt, "vip")}, Limits: randomLimits(rt),
			Sources: lb.Sources{Allow: some(rt, "allow", 0, 3, prefix), Deny: some(rt, "deny", 0, 3, prefix)},
		})
		want.Services = append(want.Services, plan.Service{Name: "taker", VIPs: []netip.Addr{addr(rt, "vip")}, SourcesOf: "gold"})
		slices.SortFunc(want.Services, plan.CompareServices)
		want.Sources = append(want.Sources, plan.Sources{Policy: "gold", Sources: randomSources(rt)})
		ep := randomEndpoint(rt)
		want.Endpoints = append(want.Endpoints, plan.Endpoint{
			Affinity: ep.Affinity, Source: ep.Source, OnePacket: ep.OnePacket, Idle: ep.Idle, Fragments: ep.Fragments, Encap: ep.Encap,
			BackupBelow: ep.BackupBelow, FailOpen: ep.FailOpen,
			Scheduler: ep.Scheduler, ScheduleBy: ep.Schedule.By, Track: ep.Track, QUIC: ep.QUIC, Cookie: ep.Cookie.Form,
			NAT: rapid.Bool().Draw(rt, "nat"), FlowsFirst: rapid.Bool().Draw(rt, "flows first"), KeepDead: rapid.Bool().Draw(rt, "keep dead"),
			Key: endpointKey(rt), Service: name(rt), Generation: rapid.Int64().Draw(rt, "generation"), RingCode: 7, KeyID: 1, RingTweak: rapid.Uint64().Draw(rt, "tweak"), Health: health(rt),
			Members: []plan.Member{
				{ID: 3, DIP: addr(rt, "dip"), Port: word(rt, "dip port"), Weight: word(rt, "weight"), Outer: addr(rt, "outer"), Backup: true},
				{ID: 65534, Down: true, DIP: addr(rt, "dip"), Port: word(rt, "dip port"), Outer: addr(rt, "outer")},
			},
		})
		want.Bindings = append(want.Bindings, plan.Binding{
			Key: endpointKey(rt), Service: name(rt), Member: word(rt, "member"), Outer: addr(rt, "outer"), DIP: addr(rt, "dip"),
			DIPPort: word(rt, "dip port"), Rewrite: rapid.Bool().Draw(rt, "rewrite"), Idle: randomHostIdle(rt), Load: randomLoad(rt),
			Cookie: rapid.Bool().Draw(rt, "cookie"), QUIC: randomQUIC(rt),
		})
		epoch := rapid.Uint32Range(1, 1<<31).Draw(rt, "epoch")
		want.Cookies = append(want.Cookies, plan.CookieKeys{
			VNI: 7, VIP: addr(rt, "vip"), Mint: epoch + 1, Keys: []plan.CookieKey{{Epoch: epoch, Key: [16]byte{1}}, {Epoch: epoch + 1, Key: [16]byte{2}}},
		})
		want.CIDs = append(want.CIDs, plan.CIDKeys{VIP: addr(rt, "vip"), Mint: epoch, Keys: []plan.CIDKey{{Epoch: epoch, Key: [16]byte{3}}}})
		if check := health(rt); check.ByHost() {
			want.Bindings[0].Health = check
		}
		want.Repairs = append(want.Repairs, plan.Repair{
			Key: endpointKey(rt), Hash: plan.Key{ID: 2, Key: [16]byte{3}}, Encap: "gue", Source: randomSource(rt), Fragments: lb.FragmentsDrop,
			Targets: []plan.Target{{ID: word(rt, "id"), DIP: addr(rt, "dip"), Port: word(rt, "port"), Outer: addr(rt, "outer"), Host: addr(rt, "host")}},
			Memberships: some(rt, "memberships", 1, 3, func(rt *rapid.T) plan.Seats {
				return plan.Seats{Generation: 7, RingCode: 9, Seats: some(rt, "seats", 1, 3, func(rt *rapid.T) plan.Seat {
					return plan.Seat{ID: word(rt, "id"), Weight: word(rt, "weight"), Backup: rapid.Bool().Draw(rt, "backup"), Down: rapid.Bool().Draw(rt, "down")}
				})}
			}),
		})
		items := rapid.Permutation(ToItems(&want)).Draw(rt, "order")
		got, err := FromItems(items)
		if err != nil || !reflect.DeepEqual(got, want) {
			rt.Fatalf("came back as\n%+v %v, want\n%+v", got, err, want)
		}
	})
}

func nodeOf(rt *rapid.T) *lb.Node {
	n := &lb.Node{Name: "n", Role: lb.RoleMux, Addresses: []netip.Addr{addr(rt, "address")}}
	lb.SetDefaults(n)
	return n
}

// someTime returns a time, or none.
func someTime(rt *rapid.T) time.Time {
	if rapid.Bool().Draw(rt, "no time") {
		return time.Time{}
	}
	return time.Unix(rapid.Int64Range(0, 1<<32).Draw(rt, "time"), 7).UTC()
}

func TestStatesComeBack(t *testing.T) {
	members := func(rt *rapid.T) []plan.MemberState {
		return some(rt, "members", 1, 3, func(rt *rapid.T) plan.MemberState {
			return plan.MemberState{
				ID: word(rt, "id"), Backend: lb.BackendKey{DIP: addr(rt, "dip"), Port: word(rt, "port")}, Weight: word(rt, "weight"),
				Backup: rapid.Bool().Draw(rt, "backup"), Down: rapid.Bool().Draw(rt, "down"), Warming: someTime(rt), Draining: someTime(rt),
				Host: addr(rt, "host"),
			}
		})
	}

	rapid.Check(t, func(rt *rapid.T) {
		want := plan.EndpointState{
			Key: endpointKey(rt), Membership: plan.Membership{Generation: 9, RingCode: 7, KeyID: 2, Members: members(rt)},
			Cookies: rapid.Bool().Draw(rt, "cookies"),
			Young:   rapid.SampledFrom([]time.Time{{}, time.Unix(1<<31, 0).UTC()}).Draw(rt, "young"),
			Quarantine: some(rt, "quarantine", 0, 2, func(rt *rapid.T) plan.Quarantined {
				return plan.Quarantined{ID: word(rt, "id"), Backend: lb.BackendKey{DIP: addr(rt, "dip"), Port: 1}, Until: time.Unix(rapid.Int64Range(0, 1<<32).Draw(rt, "until"), 5).UTC()}
			}),
			History: some(rt, "history", 0, 8, func(rt *rapid.T) plan.Membership {
				return plan.Membership{Generation: 1, RingCode: 6, KeyID: 1, Members: members(rt), Until: someTime(rt)}
			}),
		}
		got, err := FromStoredEndpoint(ToStoredEndpoint(&want))
		if err != nil || !reflect.DeepEqual(got, want) {
			rt.Fatalf("came back as %+v %v, want %+v", got, err, want)
		}
		key, err := plan.ParseKey(plan.FormatKey(want.Key))
		if err != nil || key != want.Key {
			rt.Fatalf("key came back as %+v %v, want %+v", key, err, want.Key)
		}
	})
}

func TestBadItemsAreRefused(t *testing.T) {
	good := func() *apiv1.PlanEndpoint {
		return &apiv1.PlanEndpoint{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Members: []*apiv1.PlanMember{{Dip: "10.0.0.1", Outer: "10.0.0.1"}}}
	}
	for want, change := range map[string]func(*apiv1.PlanEndpoint){
		"vip: ":                  func(ep *apiv1.PlanEndpoint) { ep.Vip = "" },
		"protocol: icmp":         func(ep *apiv1.PlanEndpoint) { ep.Protocol = "icmp" },
		"port: 65536":            func(ep *apiv1.PlanEndpoint) { ep.Port = 65536 },
		"vni: 16777216":          func(ep *apiv1.PlanEndpoint) { ep.Vni = 1 << 24 },
		"members[0].id: 65536":   func(ep *apiv1.PlanEndpoint) { ep.Members[0].Id = 65536 },
		"members[0].outer: 10.0": func(ep *apiv1.PlanEndpoint) { ep.Members[0].Outer = "10.0" },
		"members[0].dip":         func(ep *apiv1.PlanEndpoint) { ep.Members[0] = nil },
	} {
		ep := good()
		change(ep)
		_, err := FromItems([]*apiv1.PlanItem{{Key: "k", Item: &apiv1.PlanItem_Endpoint{Endpoint: ep}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v: must tell of %q", err, want)
		}
	}
	key := func(epoch uint32) *apiv1.PlanEpochKey {
		return &apiv1.PlanEpochKey{Epoch: epoch, Key: make([]byte, 16)}
	}
	for want, keys := range map[string]*apiv1.PlanKeys{
		"vip: ":                              {Keys: []*apiv1.PlanEpochKey{key(1)}, Mint: 1},
		"keys: 0 keys":                       {Vip: "203.0.113.10"},
		"keys: 3 keys":                       {Vip: "203.0.113.10", Keys: []*apiv1.PlanEpochKey{key(1), key(2), key(3)}, Mint: 1},
		"mint: 3: must be the epoch":         {Vip: "203.0.113.10", Keys: []*apiv1.PlanEpochKey{key(1), key(2)}, Mint: 3},
		"keys[0].epoch: 0: must be above 0":  {Vip: "203.0.113.10", Keys: []*apiv1.PlanEpochKey{key(0)}},
		"keys[1].epoch: 2: must be above 2":  {Vip: "203.0.113.10", Keys: []*apiv1.PlanEpochKey{key(2), key(2)}, Mint: 2},
		"keys: epochs 1 and 15: must have":   {Vip: "203.0.113.10", Keys: []*apiv1.PlanEpochKey{key(1), key(15)}, Mint: 1},
		"keys[0].key: 15 bytes: must be 16 ": {Vip: "203.0.113.10", Keys: []*apiv1.PlanEpochKey{{Epoch: 1, Key: make([]byte, 15)}}, Mint: 1},
		"vni: 16777216":                      {Vni: 1 << 24, Vip: "203.0.113.10", Keys: []*apiv1.PlanEpochKey{key(1)}, Mint: 1},
	} {
		for _, item := range []*apiv1.PlanItem{{Key: "k", Item: &apiv1.PlanItem_Cookies{Cookies: keys}}, {Key: "k", Item: &apiv1.PlanItem_Cids{Cids: keys}}} {
			if _, err := FromItems([]*apiv1.PlanItem{item}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v: must tell of %q", err, want)
			}
		}
	}
	for _, item := range []*apiv1.PlanItem{nil, {Key: "k"}, {Item: &apiv1.PlanItem_RingKey{RingKey: &apiv1.PlanKey{Key: make([]byte, 15)}}}, {Item: &apiv1.PlanItem_Binding{}}} {
		if _, err := FromItems([]*apiv1.PlanItem{item}); err == nil {
			t.Errorf("item %v was accepted", item)
		}
	}
}

// FuzzFromObject reads raw messages, as any client may send them: every accepted and valid one must
// come back the same.
func FuzzFromObject(f *testing.F) {
	seed := func(o *apiv1.Object) {
		b, err := proto.Marshal(o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	weight := uint32(7)
	seed(&apiv1.Object{Kind: &apiv1.Object_Service{Service: &apiv1.Service{Name: "web", Vip: []string{"203.0.113.10"}, Endpoints: []*apiv1.Endpoint{{
		Protocol: "tcp", Port: "80", Backends: []*apiv1.Backend{{Dip: []string{"10.20.1.11"}, Host: "10.20.1.1", Weight: &weight}},
	}}}}})
	seed(&apiv1.Object{Kind: &apiv1.Object_Service{Service: &apiv1.Service{
		Name: "media", Vip: []string{"203.0.113.20"}, Limits: &apiv1.Limits{Packets: 1, Connections: 2, Ping: 3},
		Policy: "gold", Placement: &apiv1.Placement{Replicas: 2, By: "load"},
		Sources: &apiv1.Sources{Allow: []string{"0.0.0.0/0"}, Deny: []string{"192.0.2.0/24"}},
		Endpoints: []*apiv1.Endpoint{{
			Protocol: "udp", Port: "8000-8100", Source: &apiv1.SourceAffinity{Prefix4: 24, For: durationpb.New(time.Minute)},
			Idle: &apiv1.Idle{Untrusted: durationpb.New(time.Minute)}, Fragments: "3tuple", Encap: "gue", BackupBelow: 70, FailOpen: true,
			SlowStart: durationpb.New(time.Minute), DrainTimeout: durationpb.New(time.Minute), RepairWindow: durationpb.New(time.Minute), HostIdle: &apiv1.HostIdle{Udp: durationpb.New(time.Minute)}, Load: &apiv1.Load{Http: &apiv1.LoadHTTP{Port: 70000}}, Health: &apiv1.Health{Port: 80},
			Backends: []*apiv1.Backend{{Dip: []string{"10.20.1.11"}, Host: "10.20.1.1", Backup: true}},
		}, {
			Protocol: "quic", Port: "443", Affinity: "cookie", Scheduler: "p2c", Schedule: &apiv1.Schedule{By: "cpu"}, Quic: &apiv1.QUIC{Format: "quiclb", ServerIdLength: 300},
			Backends: []*apiv1.Backend{{Dip: []string{"10.20.1.11"}, Host: "10.20.1.1"}},
		}, {
			Protocol: "tcp", Port: "443", Affinity: "cookie", Cookie: &apiv1.Cookie{Form: "evc"}, Track: true,
			Backends: []*apiv1.Backend{{Dip: []string{"10.20.1.11"}, Host: "10.20.1.1"}},
		}, {Protocol: "any", Affinity: "hash", Health: &apiv1.Health{Port: 80}, Backends: []*apiv1.Backend{{Dip: []string{"10.20.1.11"}, Host: "10.20.1.1"}}}},
	}}})
	seed(&apiv1.Object{Kind: &apiv1.Object_Node{Node: &apiv1.Node{Name: "mux1", Role: "mux", Address: []string{"10.10.0.11"}, Bgp: &apiv1.BGP{Asn: 1, Peers: []*apiv1.BGPPeer{{}}}}}})
	seed(&apiv1.Object{Kind: &apiv1.Object_Network{Network: &apiv1.Network{Name: "main", Vips: []string{"203.0.113.0/24"}, Underlay: []string{"10.0.0.0/8"}}}})
	seed(&apiv1.Object{Kind: &apiv1.Object_Tenant{Tenant: &apiv1.Tenant{Name: "shop", Weight: 2, Vni: 1, Quotas: &apiv1.Quotas{Services: 1, Endpoints: 2, Backends: 3, Changes: 4}}}})
	seed(&apiv1.Object{Kind: &apiv1.Object_Policy{Policy: &apiv1.Policy{Name: "gold", Tenant: "shop", Limits: &apiv1.Limits{}, Sources: &apiv1.Sources{}, Placement: &apiv1.Placement{}}}})
	seed(&apiv1.Object{})
	f.Add([]byte{0x1a, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		msg := &apiv1.Object{}
		if proto.Unmarshal(b, msg) != nil {
			return
		}
		obj, faults := FromObject(msg, 0)
		if (obj == nil) != (len(faults) > 0) {
			t.Fatalf("object %v with faults %v", obj, faults)
		}
		if obj == nil || len(lb.Validate(obj)) > 0 {
			return
		}
		again, faults := FromObject(ToObject(obj), 0)
		if len(faults) > 0 || !lb.Equal(obj, again) {
			t.Fatalf("came back as %+v %v, want %+v", again, faults, obj)
		}
	})
}
