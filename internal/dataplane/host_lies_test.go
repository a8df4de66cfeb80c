package dataplane

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestHostLies gives every prefix of good frames, and frames with random bytes changed, to both programs: whatever they
// say, a packet ends in one way that is counted, and one that is cut short is never delivered.
func TestHostLies(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.applyCookies([]plan.CookieKeys{bakedKeys(vip4, 1), bakedKeys(vip6, 1, 2)},
		baked(bind(lb.TCP, vip4, dip4, dip4, true)), bind(lb.UDP, vip4, dip4, dip4, true),
		baked(bind(lb.TCP, vip6, dip6, dip6, true)), bind(lb.UDP, vip6, dip6, dip6, true),
		bind(lb.TCP, vip4, host6, dip4, true), bind(lb.TCP, vip6, host4, dip6, true),
		gue(1, every(bind(lb.TCP, vip4, dip4, dip4, true))), gue(1, every(bind(lb.TCP, vip6, dip6, dip6, true))))
	seed := rand.Uint64()
	if s := os.Getenv("SHUNT_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	t.Logf("SHUNT_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	given := uint64(0)
	before := e.reasons(nil)
	must(t, netdev.In(e.namespace, func() error {
		give := func(p *ebpf.Program, frame []byte) (uint32, error) {
			given++
			return p.Run(&ebpf.RunOptions{Data: frame, Context: skbContext{Ifindex: uint32(e.ifindex)}})
		}
		for _, c := range append(deliveredCases(t), oddCases(t)...) {
			for n := shortest(c.in); n < len(c.in); n++ {
				verdict, err := give(e.host.objects.HostIn, c.in[:n])
				if err != nil {
					return err
				}
				if int32(verdict) == verdictRedirect || int32(verdict) == verdictPass {
					t.Errorf("%s: delivered when cut to %d bytes", c.name, n)
				}
			}
			for range 100 {
				lie := append([]byte{}, c.in...)
				for range 1 + random.IntN(3) {
					lie[12+random.IntN(len(lie)-12)] = byte(random.Uint32())
				}
				for _, p := range []*ebpf.Program{e.host.objects.HostIn, e.host.objects.HostOut} {
					if _, err := give(p, lie); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}))
	ends := uint64(0)
	for reason, n := range e.reasons(before) {
		if HostReasons().Class(reason) != ClassInfo {
			ends += n
		}
	}
	if ends != given {
		t.Errorf("%d packets given, %d ends counted", given, ends)
	}
}

// oddCases are packets of GUE, an ICMP error, a fragment and a packet without ports.
func oddCases(t *testing.T) []hostCase {
	good := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40005, dport: 80, ack: true, payload: "x"}
	good6 := packet{protocol: lb.UDP, src: client6, dst: vip6, sport: 40005, dport: 53, payload: "x"}
	sent := packet{protocol: lb.TCP, src: vip4, dst: client4, sport: 80, dport: 40001, ack: true}
	sent6 := packet{protocol: lb.TCP, src: vip6, dst: client6, sport: 80, dport: 40002, ack: true}
	stamped, stamped6 := good, good
	stamped.options = append(onSYN(7, 8), nop(), nop())
	stamped6.src, stamped6.dst, stamped6.syn, stamped6.options = client6, vip6, true, usual(7, 8)
	return []hostCase{
		{name: "GUE 4", in: gueTunnel(t, source4, dip4, 1, good.bytes(t))},
		{name: "GUE 6", in: gueTunnel(t, source6, dip6, 1, good6.bytes(t))},
		{name: "ICMP 4", in: tunnel(t, source4, dip4, icmp(t, router4, vip4, 3, 4, 1400, sent.bytes(t)))},
		{name: "ICMP 6", in: tunnel(t, source6, dip6, icmp(t, router6, vip6, 2, 0, 1400, sent6.bytes(t)))},
		{name: "ICMP in GUE", in: gueTunnel(t, source4, dip4, 1, icmp(t, router4, vip4, 3, 4, 1400, sent.bytes(t)))},
		{name: "fragment 4", in: tunnel(t, source4, dip4, cut(good.bytes(t), 5, 16)[1])},
		{name: "fragment 6", in: gueTunnel(t, source6, dip6, 1, cut(good6.bytes(t), 5, 8)[0])},
		{name: "timestamps 4", in: tunnel(t, source4, dip4, stamped.bytes(t))},
		{name: "timestamps 6", in: tunnel(t, source6, dip6, stamped6.bytes(t))},
		{name: "without ports", in: gueTunnel(t, source6, dip6, 1, plain(t, client6, vip6, 136, "0123456789"))},
	}
}

// shortest is the length that prog-run does not take less of: an Ethernet and an IP header.
func shortest(frame []byte) int {
	if frame[12] == 0x86 {
		return 14 + ip6HeaderLen
	}
	return 14 + ip4HeaderLen
}

// TestHostSteps: loading must stay a matter of milliseconds, so what the verifier has to look at is bounded.
func TestHostSteps(t *testing.T) {
	e := newHostEnv(t)
	for _, p := range []struct {
		program  *ebpf.Program
		recorded uint32 // with Linux 6.18
	}{
		// The choice by shares of the place that a new flow takes took 4,200 in host_in and in host_out.
		{e.host.objects.HostIn, 60_166},
		// Sequence checks of both directions, which keep a stranger's segments from changing flows, took 8,500 in host_out and 8,100 in host_serve.
		{e.host.objects.HostOut, 64_784},
		{e.host.objects.HostServe, 36_910},
	} {
		info, err := p.program.Info()
		must(t, err)
		n, ok := info.VerifiedInstructions()
		t.Log(info.Name, n)
		if most := p.recorded + p.recorded/10; ok && n > most {
			t.Errorf("%s: %d verified instructions, at most %d, a tenth more than recorded", info.Name, n, most)
		}
	}
}
