package dataplane

import (
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
)

// snatBack is the record that leads back from a far end's port to a port of vip4.
func snatBack(e *hostEnv, far string, farPort, port uint16) hostFlowRecord {
	r := flowOf(e, far, vip4, farPort)
	r.Kind, r.DipPortBe = uint8(hostFlowKindFLOW_BACK), be16(port)
	return r
}

// opens gives a SYN of dip4 to host_out and returns the port of vip4 that it leaves from, 0: it has none.
func (e *hostEnv) opens(far string, sport uint16) uint16 {
	e.t.Helper()
	p := packet{protocol: lb.TCP, src: dip4, dst: far, sport: sport, dport: 443, syn: true}
	before := e.reasons(nil)
	v, out := e.run(e.host.objects.HostOut, frame(p.bytes(e.t)))
	switch r := e.reasons(before); {
	case v == verdictNext && r["out_snat"] == 1:
		return uint16(out[34])<<8 | uint16(out[35])
	case v == verdictDrop && r["out_snat_no_port"] == 1 && len(r) == 1:
		return 0
	default:
		e.t.Fatalf("a SYN to %s: verdict %d, reasons %v", far, v, r)
	}
	return 0
}

// TestHostSNATSpent: once a server has no port left towards a far end its further connections there are refused without a search until the next tick; those to other
// far ends get ports, and so do all once there are more.
func TestHostSNATSpent(t *testing.T) {
	e := roomySNATEnv(t, 200)
	var ports []uint16
	for i := range uint16(8) {
		ports = append(ports, e.opens(far4, 40000+i))
		if ports[i] == 0 {
			t.Fatalf("connection %d of 8 has no port", i)
		}
	}
	for i := range uint16(20) {
		if e.opens(far4, 41000+i) != 0 {
			t.Fatal("nine connections have eight ports")
		}
	}
	for i := range uint16(8) {
		if e.opens(otherFar4, 40000+i) == 0 {
			t.Fatalf("connection %d of 8 to another far end has no port", i)
		}
	}
	// A connection that loses its place sets a port free in the course of a tick.
	e.forget(snatBack(e, far4, 443, ports[3]))
	if got := e.opens(far4, 42000); got != 0 {
		t.Errorf("port %d was searched for in the same tick", got)
	}
	e.later(1 << hostFlowTagFLOW_TAG_TICK_SHIFT)
	if got := e.opens(far4, 42000); got != ports[3] {
		t.Errorf("port %d in the next tick, want %d", got, ports[3])
	}
	if e.opens(far4, 42001) != 0 {
		t.Error("nine connections have eight ports")
	}
	must(t, e.host.SetRanges(holder4, []snat.Range{200, 300}, nil))
	if got := e.opens(far4, 42001); snat.RangeOf(got) != 300 {
		t.Errorf("port %d once there is another range, want one of it", got)
	}
	// Time frees all.
	e.later(lb.DefaultHostIdle.Established + time.Hour)
	if e.opens(far4, 43000) == 0 {
		t.Error("no port when all connections are over")
	}
}

// TestHostSNATSpentOfMany: of more ports than one search tries some are tried all the same, so that one that becomes free is found in the same tick.
func TestHostSNATSpentOfMany(t *testing.T) {
	e := roomySNATEnv(t, leasedRanges(200, 16)...)
	held := map[uint16]bool{}
	for sport := uint16(20000); len(held) < 128 && sport < 40000; sport++ {
		if port := e.opens(far4, sport); port != 0 {
			held[port] = true
		}
	}
	if len(held) != 128 {
		t.Fatalf("%d of 128 ports are in use", len(held))
	}
	if e.opens(far4, 40000) != 0 {
		t.Fatal("a port of none")
	}
	var free uint16
	for port := range held {
		free = port
	}
	e.forget(snatBack(e, far4, 443, free))
	for sport := uint16(40001); ; sport++ {
		got := e.opens(far4, sport)
		if got == free {
			break
		}
		if got != 0 || sport > 42000 {
			t.Fatalf("port %d after %d SYNs, want %d", got, sport-40000, free)
		}
	}
}
