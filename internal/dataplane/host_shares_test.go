package dataplane

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// Other VIPs of the server that vip4 and vip6 lead to, by ports of their own.
const (
	shareVIP4, shareVIP6 = "203.0.113.77", "2001:db8:f::77"
	shareDIPPort         = 8081
)

// shareBindings are two services of each family.
func shareBindings() []plan.Binding {
	other4, other6 := bind(lb.TCP, shareVIP4, dip4, dip4, true), bind(lb.TCP, shareVIP6, dip6, dip6, true)
	other4.DIPPort, other6.DIPPort = shareDIPPort, shareDIPPort
	return []plan.Binding{bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, vip6, dip6, dip6, true), other4, other6}
}

// shareCase is a service whose flows another floods.
type shareCase struct {
	name                 string
	client, own, flooded string // the own VIP, and that of the flood
	source, dip          string
	clientAt             int // of the inner source address in the frame
	ownPort              uint16
}

var shareCases = []shareCase{
	{"IPv4", client4, shareVIP4, vip4, source4, dip4, 34 + 12, shareDIPPort},
	{"IPv6", client6, shareVIP6, vip6, source6, dip6, 54 + 8, shareDIPPort},
}

func (c *shareCase) syn(t *testing.T, vip string, port uint16) []byte {
	return tunnel(t, c.source, c.dip, packet{protocol: lb.TCP, src: c.client, dst: vip, sport: port, dport: 80, syn: true}.bytes(t))
}

// TestHostUntrustedShares: a flood of SYNs for one VIP takes no places of opening connections of another.
func TestHostUntrustedShares(t *testing.T) {
	for _, c := range shareCases {
		t.Run(c.name, func(t *testing.T) {
			e := newClockEnv(t)
			e.apply(shareBindings()...)
			const opening = 100
			for port := range uint16(opening) {
				if v, _ := e.run(e.host.objects.HostIn, c.syn(t, c.own, 1000+port)); v != verdictRedirect {
					t.Fatalf("SYN %d: verdict %d", port, v)
				}
			}
			before := e.reasons(nil)
			must(t, netdev.In(e.namespace, func() error {
				f := c.syn(t, c.flooded, 1)
				for i := range uint32(4 * MinHostFlows) {
					binary.BigEndian.PutUint32(f[c.clientAt:], 0x20010000+i)
					if _, err := e.host.objects.HostIn.Run(&ebpf.RunOptions{Data: f, Context: skbContext{Ifindex: uint32(e.ifindex)}}); err != nil {
						return err
					}
				}
				return nil
			}))
			if r := e.reasons(before); r["in_delivered"] != uint64(4*MinHostFlows) || r["flow_evicted"] < uint64(3*MinHostFlows) {
				t.Fatalf("reasons of the flood %v", r)
			}
			lost := 0
			for port := range uint16(opening) {
				r := flowOf(e, c.client, c.dip, 1000+port)
				r.DipPortBe = be16(c.ownPort)
				if _, _, ok := e.host.flows.find(&r, e.tick()); !ok {
					lost++
				}
			}
			// Of a hundred connections hardly ever three are in one of a thousand buckets: then they are the ones that have most of two.
			if lost > 2 {
				t.Errorf("%d of %d opening connections lost their places to a flood of another VIP", lost, opening)
			}
			before = e.reasons(nil)
			if v, _ := e.run(e.host.objects.HostIn, c.syn(t, c.own, 5000)); v != verdictRedirect {
				t.Errorf("a SYN after the flood: verdict %d, reasons %v", v, e.reasons(before))
			}
		})
	}
}

// fill gives the empty places from number `from` to `to` trusted flows of a VIP; places are numbered so that buckets fill evenly.
func (e *hostEnv) fill(vip, dip string, from, to int) {
	e.t.Helper()
	table := e.host.flows
	for i := from; i < to; i++ {
		b, way := i%len(table.tags), i/len(table.tags)
		if table.tags[b].Tags[way] != 0 {
			continue
		}
		r := flowOf(e, netip.MustParseAddr(dip).String(), dip, uint16(i))
		r.Vip = e.number(vip)
		table.records[b*flowWays+way] = r
		table.tags[b].Tags[way] = uint64(newFlowTag(table.hash(&r), 1, FlowTrusted, e.tick()+1000))
	}
}

// TestHostTrustedShares: a VIP whose established flows are more than its share begins no others, whoever else is on the host does, and it does again
// once its own are over.
func TestHostTrustedShares(t *testing.T) {
	for _, c := range shareCases {
		t.Run(c.name, func(t *testing.T) {
			e := newClockEnv(t)
			e.apply(shareBindings()...)
			capacity := int(MinHostFlows)
			e.fill(c.flooded, c.dip, 0, capacity*3/4)
			e.sweepAll()
			if over, pressed := e.host.Shares(); len(over) != 0 || !pressed {
				t.Fatalf("at three quarters: %+v, pressed %v", over, pressed)
			}
			e.fill(c.flooded, c.dip, capacity*3/4, capacity*3/4+16)
			e.sweepAll()
			over, _ := e.host.Shares()
			want := []Share{{lb.EndpointKey{VIP: netip.MustParseAddr(c.flooded)}, "flows", uint64(capacity*3/4 + 16), uint64(capacity * 3 / 4)}}
			if !slices.Equal(over, want) {
				t.Fatalf("over their share: %+v, want %+v", over, want)
			}
			e.expect("a SYN of the VIP over its share", c.syn(t, c.flooded, 777), verdictDrop, nil, "in_state_full", "flow_over_share")
			before := e.reasons(nil)
			for port := range uint16(50) {
				if v, _ := e.run(e.host.objects.HostIn, c.syn(t, c.own, 2000+port)); v != verdictRedirect {
					t.Fatalf("SYN %d of the other VIP: verdict %d, reasons %v", port, v, e.reasons(before))
				}
			}
			e.later(1100 << hostFlowTagFLOW_TAG_TICK_SHIFT)
			e.sweepAll()
			if over, pressed := e.host.Shares(); len(over) != 0 || pressed {
				t.Fatalf("when all are over: %+v, pressed %v", over, pressed)
			}
			if v, _ := e.run(e.host.objects.HostIn, c.syn(t, c.flooded, 777)); v != verdictRedirect {
				t.Errorf("a SYN when all are over: verdict %d", v)
			}
		})
	}
}

// TestHostShareAlone: the only VIP of a host may fill the table.
func TestHostShareAlone(t *testing.T) {
	e := newClockEnv(t)
	c := shareCases[0]
	e.apply(shareBindings()[0])
	e.fill(c.flooded, c.dip, 0, int(MinHostFlows)*15/16)
	e.sweepAll()
	if over, pressed := e.host.Shares(); len(over) != 0 || !pressed {
		t.Errorf("over %+v, pressed %v", over, pressed)
	}
}

// TestHostSNATShare: connections that servers open count for their VIP, and begin no more when it is over its share.
func TestHostSNATShare(t *testing.T) {
	e := newSNATEnv(t, 200, 201)
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 40001, dport: 443, syn: true}
	port := e.leaves("known before", syn, 0)
	e.fill(vip4, dip4, 0, int(MinHostFlows)*3/4+8)
	e.sweepAll()
	if over, _ := e.host.Shares(); len(over) != 1 || over[0].VIP.VIP != netip.MustParseAddr(vip4) {
		t.Fatalf("over their share: %+v", over)
	}
	fresh := syn
	fresh.sport++
	before, in := e.reasons(nil), frame(fresh.bytes(t))
	if v, out := e.run(e.host.objects.HostOut, in); v != verdictDrop || !bytes.Equal(out, in) || !maps.Equal(e.reasons(before), one("out_snat_full", "flow_over_share")) {
		t.Errorf("another connection: verdict %d, reasons %v", v, e.reasons(before))
	}
	if again := e.leaves("known", syn, 0); again != port {
		t.Errorf("a known connection has port %d, it had %d", again, port)
	}
}

// TestHostShareOracle compares the place that a newcomer takes with a naive choice: full buckets of few VIPs, of any class and time, over their
// share or not.
func TestHostShareOracle(t *testing.T) {
	e := newClockEnv(t)
	vips := []string{vip4, shareVIP4, "203.0.113.78", "203.0.113.79"}
	var bindings []plan.Binding
	for i, vip := range vips {
		b := bind(lb.TCP, vip, dip4, dip4, true)
		b.DIPPort = uint16(8080 + i)
		bindings = append(bindings, b)
	}
	e.apply(bindings...)
	seed := rand.Uint64()
	if s := os.Getenv("SHUNT_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	t.Logf("SHUNT_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 5))
	table, tick := e.host.flows, e.tick()
	for step := range 3000 {
		of, sport := random.IntN(len(vips)), uint16(1+random.IntN(60000))
		own := flowOf(e, client4, dip4, sport)
		own.DipPortBe, own.Vip = be16(uint16(8080+of)), e.number(vips[of])
		hash := table.hash(&own)
		places := oracleFill(e, random, vips, hash)
		over := random.IntN(3) == 0
		table.markShare(own.Vip, over)
		want := oraclePlace(places, own.Vip, uint32(hash>>32), over)
		before := e.reasons(nil)
		v, _ := e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, packet{protocol: lb.TCP, src: client4, dst: vips[of], sport: sport, dport: 80, syn: true}.bytes(t)))
		place, _, ok := table.find(&own, tick)
		reasons := e.reasons(before)
		wanted := one("in_delivered", "flow_evicted")
		switch {
		case want < 0 && over:
			wanted = one("in_state_full", "flow_over_share")
		case want < 0:
			wanted = one("in_state_full")
		}
		if ok != (want >= 0) || (ok && place != want) || !maps.Equal(reasons, wanted) {
			t.Fatalf("step %d: verdict %d, place %d (%v), want %d; reasons %v, want %v; over %v, VIP %d, places\n%+v", step, v, place, ok, want, reasons, wanted, over,
				own.Vip, places)
		}
		for _, p := range places {
			table.tags[p.place/flowWays].Tags[p.place%flowWays] = 0
		}
		table.markShare(own.Vip, false)
	}
}

// oracleEntry is a full place.
type oracleEntry struct {
	place int
	class FlowClass
	left  uint64
	vip   uint32
	kind  uint8
}

// oracleFill fills the two buckets of a hash: few untrusted flows, so that there are four at most that are free for trusted ones only.
func oracleFill(e *hostEnv, random *rand.Rand, vips []string, hash uint64) (places []oracleEntry) {
	table, tick := e.host.flows, e.tick()
	trusted := random.IntN(9)
	for _, second := range []bool{false, true} {
		b := int(table.bucket(hash, second))
		for way := range flowWays {
			p := oracleEntry{
				place: b*flowWays + way, class: FlowTrusted, left: uint64(1 + random.IntN(300)), vip: e.number(vips[random.IntN(1+random.IntN(len(vips)))]),
				kind: uint8(random.IntN(5)),
			}
			if random.IntN(8) >= trusted {
				p.class = []FlowClass{FlowUntrusted, FlowClosing}[random.IntN(2)]
			}
			r := hostFlowRecord{Vip: p.vip, Dip: e.number(dip4), Kind: p.kind, Scope: 6}
			if p.kind == uint8(hostFlowKindFLOW_ALIAS) || p.kind == uint8(hostFlowKindFLOW_BACK) {
				r.Vip, r.Dip = r.Dip, r.Vip
			}
			table.records[p.place] = r
			table.tags[b].Tags[way] = uint64(newFlowTag(random.Uint64(), 1, p.class, tick+p.left))
			places = append(places, p)
		}
	}
	return places
}

// oraclePlace is the place that a newcomer takes of full buckets, -1: none. Where VIPs fall into one of the 16 groups of this flow they count as one.
func oraclePlace(places []oracleEntry, own, fingerprint uint32, over bool) int {
	group := func(vip uint32) uint32 { return (vip ^ fingerprint) * 0x9e3779b1 >> 28 }
	counts := map[uint32]int{}
	for _, p := range places {
		if p.class != FlowTrusted {
			counts[group(p.vip)]++
		}
	}
	var may []oracleEntry
	for _, p := range places {
		if p.class != FlowTrusted && (!over || p.vip == own) {
			may = append(may, p)
		}
	}
	if len(may) == 0 {
		return -1
	}
	first := slices.MinFunc(may, func(a, b oracleEntry) int {
		if d := counts[group(b.vip)] - counts[group(a.vip)]; d != 0 {
			return d
		}
		if (a.vip == own) != (b.vip == own) {
			if a.vip == own {
				return -1
			}
			return 1
		}
		return int(a.left) - int(b.left)
	})
	return first.place
}
