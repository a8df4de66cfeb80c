package dataplane

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// beside are the reasons counted beside a verdict; all others are the one end of a packet.
var beside = map[string]bool{"mss_clamped": true, "client_port_mapped": true}

// TestHostLies gives every prefix of good frames, and frames with random bytes changed, to both programs: whatever they
// say, a packet ends in one way that is counted, and one that is cut short is never delivered.
func TestHostLies(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true),
		bind(lb.TCP, vip6, dip6, dip6, true), bind(lb.UDP, vip6, dip6, dip6, true),
		bind(lb.TCP, vip4, host6, dip4, true), bind(lb.TCP, vip6, host4, dip6, true))
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
		for _, c := range deliveredCases(t) {
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
		if !beside[reason] {
			ends += n
		}
	}
	if ends != given {
		t.Errorf("%d packets given, %d ends counted", given, ends)
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
	const most = 40_000 // 19,704 and 3,481 with Linux 6.18
	for _, p := range []*ebpf.Program{e.host.objects.HostIn, e.host.objects.HostOut} {
		info, err := p.Info()
		must(t, err)
		if n, ok := info.VerifiedInstructions(); ok && n > most {
			t.Errorf("%s: %d verified instructions, at most %d", info.Name, n, most)
		}
	}
}
