package dataplane

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
)

// TestHostSNATLowOfBefore: what a program told the agent before, after this one had looked and before it listened, is told again.
func TestHostSNATLowOfBefore(t *testing.T) {
	e := newSNATEnv(t)
	e.host.snat.holders[e.host.snat.placed[holder4].index].Low = 1
	low := e.host.Low()
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 1000, dport: 443, syn: true}
	e.answered("no port", frame(syn.bytes(t)), verdictDrop, nil, "out_snat_no_port")
	if h := <-low; h != holder4 {
		t.Errorf("ports of %v are scarce", h)
	}
}

// scarceAgain gives host_out a packet for which there is neither a port nor room to wait, until it is told that holder4's ports are scarce.
func (e *hostEnv) scarceAgain(low <-chan snat.Holder, p packet) {
	e.t.Helper()
	for {
		e.answered("still none", frame(p.bytes(e.t)), verdictDrop, nil, "out_snat_no_port")
		select {
		case h := <-low:
			if h != holder4 {
				e.t.Errorf("ports of %v are scarce", h)
			}
			return
		default:
		}
	}
}

// TestHostSNATLowAgain: of a DIP that never has enough the agent hears again and again.
func TestHostSNATLowAgain(t *testing.T) {
	e := newSNATEnv(t)
	low := e.host.Low()
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 1000, dport: 443, syn: true}
	for range 5 {
		e.scarceAgain(low, syn)
	}
}

// TestHostSNATSettle: packets that were lost on their way to the agent take no room of their DIP for ever, and those that wait do.
func TestHostSNATSettle(t *testing.T) {
	e := newSNATEnv(t)
	e.host.SetDevice(e.ifindex)
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 1000, dport: 443, syn: true}
	fill := func(n int) {
		t.Helper()
		for range n {
			e.answered("waits", frame(syn.bytes(t)), verdictRedirect, frame(syn.bytes(t)), "out_snat_waits")
		}
		e.answered("too many wait", frame(syn.bytes(t)), verdictDrop, nil, "out_snat_no_port")
	}
	fill(MaxSNATWaiting)
	e.host.Settle(func(netip.Addr) (int, bool) { return 0, false })
	fill(0)
	e.host.Settle(func(netip.Addr) (int, bool) { return 60, true })
	fill(MaxSNATWaiting - 60)
	e.host.Settle(func(netip.Addr) (int, bool) { return 1 << 20, true })
	if n := e.flowTotals().SNAT.Waiting; n != uint64(2*MaxSNATWaiting-60) {
		t.Errorf("%d packets wait, want all that were handed over", n)
	}
}
