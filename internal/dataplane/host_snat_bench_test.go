package dataplane

import (
	"fmt"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// TestHostSNATCost logs what a packet costs in host_out, by the kernel's own account of single runs: one that nobody looks for, one of a
// connection that is known, and the first one of a connection, with few, with half and with all of the ports in use towards its far end. It asserts
// what became of them, not how long that took.
func TestHostSNATCost(t *testing.T) {
	e := roomySNATEnv(t, leasedRanges(200, 16)...)
	const packets = 2000
	cost := func(name string, packets int, reason string, frameOf func(i int) []byte) {
		before := e.reasons(nil)
		var total time.Duration
		must(t, netdev.In(e.namespace, func() error {
			for i := range packets {
				_, d, err := e.host.objects.HostOut.Benchmark(frameOf(i), 1, nil)
				if err != nil {
					return err
				}
				total += d
			}
			return nil
		}))
		if got := e.reasons(before)[reason]; got != uint64(packets) {
			t.Errorf("%s: %s %d, want %d", name, reason, got, packets)
		}
		t.Logf("%s: %d ns", name, (total / time.Duration(packets)).Nanoseconds())
	}
	of := func(src string, far, sport, dport int) []byte {
		p := packet{protocol: lb.UDP, src: src, dst: fmt.Sprintf("192.0.2.%d", far), sport: uint16(sport), dport: uint16(dport), payload: "x"}
		return frame(p.bytes(t))
	}
	known := of(dip4, 80, 999, 53)
	other := of(narrow4, 80, 999, 53)
	e.run(e.host.objects.HostOut, known)
	cost("nobody's", packets, "pass_not_ours", func(int) []byte { return other })
	cost("known", packets, "out_snat", func(int) []byte { return known })
	cost("first, no port in use", packets, "out_snat", func(i int) []byte { return of(dip4, 80, 1000, 1000+i) })
	// Of each far end half of the 128 ports are taken first.
	const half = 64
	const fars = 50
	for far := range fars {
		for s := range half {
			e.run(e.host.objects.HostOut, of(dip4, 100+far, 1000+s, 7))
		}
	}
	cost("first, half of the ports in use", 8*fars, "out_snat", func(i int) []byte { return of(dip4, 100+i%fars, 5000+i, 7) })
	for s := range 20 * half {
		e.run(e.host.objects.HostOut, of(dip4, 160, 10000+s, 7))
	}
	cost("first, no port free, again", 8*fars, "out_snat_no_port", func(i int) []byte { return of(dip4, 160, 5000+i, 7) })
}
