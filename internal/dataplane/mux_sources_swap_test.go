package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// swapList is a list of n prefixes that refuses one client in both its forms, lets another through in both, and a third
// in form 1 only. All of its prefixes decide together: half a list would let the first through or refuse the second.
func swapList(form int, n int) *SourceList {
	l := &SourceList{Digest: [32]byte{9, byte(form)}}
	wide := []string{"198.0.0.0/8", "198.51.0.0/16"}[form]
	l.Deny = []netip.Prefix{netip.MustParsePrefix(wide)}
	l.Allow = []netip.Prefix{netip.MustParsePrefix([]string{"198.51.100.2/31", "198.51.100.2/32"}[form])}
	if form == 1 {
		l.Allow = append(l.Allow, netip.MustParsePrefix("198.51.101.0/24"))
	}
	// So that the turns around the clients lie elsewhere in each form.
	for i := range n {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(20+form)<<24|uint32(i)<<8)
		l.Deny = append(l.Deny, netip.PrefixFrom(netip.AddrFrom4(b), 25))
	}
	l.Allow = append(l.Allow, netip.MustParsePrefix("0.0.0.0/0"))
	return l
}

// TestSourceListsSwap: while lists are swapped, every packet meets one of them whole.
func TestSourceListsSwap(t *testing.T) {
	e := endpointOf(muxVIP4, lb.TCP, 80, threeServers...)
	state := func(form int) MuxState {
		v := MuxVIP{VIP: muxVIP4, Sources: swapList(form, []int{40, 3000}[form])}
		return MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{e}, VIPs: []MuxVIP{v}}
	}
	f := newPolicyFixture(t, state(0))
	frame := func(src string) []byte {
		p := tcp4(80)
		p.Src = netip.MustParseAddr(src)
		return p.Frame()
	}
	frames := map[string][]byte{"refused": frame("198.51.100.9"), "taken": frame("198.51.100.2"), "taken in one form": frame("198.51.101.1")}
	var done atomic.Bool
	result := make(chan error, 1)
	go func() {
		result <- func() error {
			seen := map[uint32]int{}
			for !done.Load() {
				for name, frame := range frames {
					opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
					verdict, err := f.mux.Program().Run(&opts)
					switch {
					case err != nil:
						return err
					case name == "refused" && verdict != xdpDrop, name == "taken" && verdict != xdpTX:
						return fmt.Errorf("verdict %d on the client that is %s by both lists", verdict, name)
					case name == "taken in one form":
						seen[verdict]++
					}
				}
			}
			if seen[xdpDrop] == 0 || seen[xdpTX] == 0 {
				return fmt.Errorf("the third client saw one list only: %v", seen)
			}
			return nil
		}()
	}()
	for i := range 150 {
		must(t, f.mux.Apply(state((i+1)%2)))
		if i%3 > 0 {
			settle(t, f.mux) // packets meet this state
		}
	}
	done.Store(true)
	if err := <-result; err != nil {
		t.Error(err)
	}
	settle(t, f.mux)
	if n := len(f.mux.tables.guards.sources.byIndex); n != 1 {
		t.Errorf("%d lists are left", n)
	}
}

// TestSourceListsAreShared: one list in the tables for all VIPs that name its digest.
func TestSourceListsAreShared(t *testing.T) {
	var s MuxState
	for i := range byte(20) {
		vip := netip.AddrFrom4([4]byte{203, 0, 113, i})
		s.Endpoints = append(s.Endpoints, endpointOf(vip, lb.TCP, 80, threeServers...))
		s.VIPs = append(s.VIPs, MuxVIP{VIP: vip, Sources: swapList(int(i)%2, 100)})
	}
	f := newPolicyFixture(t, s)
	lists := f.mux.tables.guards.sources.byIndex
	if len(lists) != 2 {
		t.Errorf("%d lists", len(lists))
	}
	for _, ref := range lists {
		if ref.refs != 10 {
			t.Errorf("list %d has %d references", ref.index, ref.refs)
		}
	}
	f.readopt()
	if n := len(f.mux.tables.guards.sources.byIndex); n != 2 {
		t.Errorf("%d lists adopted", n)
	}
	must(t, f.mux.Apply(MuxState{}))
	f.checkEmpty()
}

// BenchmarkSourceList writes a list of 100,000 prefixes; bytes are what its turns take.
func BenchmarkSourceList(b *testing.B) {
	r := seeded(b)
	for _, family := range []struct {
		name string
		bits int
	}{{"v4", 32}, {"v6", 128}} {
		l := &SourceList{}
		for range 100_000 {
			var raw [16]byte
			binary.BigEndian.PutUint32(raw[:], 0x20010db8)
			binary.BigEndian.PutUint32(raw[4:], r.Uint32())
			a, length := netip.AddrFrom16(raw), 46+r.IntN(19)
			if family.bits == 32 {
				a, length = netip.AddrFrom4([4]byte(raw[4:8])), 16+r.IntN(17)
			}
			l.Deny = append(l.Deny, netip.PrefixFrom(a, length))
		}
		b.Run(family.name, func(b *testing.B) {
			var words []uint64
			for b.Loop() {
				turns := sourceTurns(sourceRules(l, family.bits == 32), false, family.bits)
				if words = packTurns6(turns); family.bits == 32 {
					words = packTurns4(turns)
				}
			}
			b.ReportMetric(float64(8*len(words)), "bytes")
		})
	}
}
