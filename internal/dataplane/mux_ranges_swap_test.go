package dataplane

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestRangesSwap: while the endpoint of a port is another range, all ports, any protocol or the very port by turns, every
// packet to it finds one of them.
func TestRangesSwap(t *testing.T) {
	forms := []MuxEndpoint{
		ranged(muxVIP4, lb.TCP, 1000, 2000, "10.20.1.11"),
		ranged(muxVIP4, lb.TCP, 0, maxPort, "10.20.2.11"),
		ranged(muxVIP4, lb.TCP, 900, 1500, "10.20.3.11"),
		ranged(muxVIP4, lb.AnyProtocol, 0, maxPort, "10.20.4.11"),
		endpointOf(muxVIP4, lb.TCP, 1500, "10.20.5.11"),
	}
	state := func(i int) MuxState {
		s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{forms[i%len(forms)]}}
		for low := uint16(3000); low < 3000+uint16(i%7)*100; low += 100 { // so that intervals move
			s.Endpoints = append(s.Endpoints, ranged(muxVIP4, lb.TCP, low, low+50, "10.20.6.11"))
		}
		return s
	}
	f := newPolicyFixture(t, state(0))
	f.setHops(hopsTo(MuxState{Endpoints: append(forms, ranged(muxVIP4, lb.TCP, 1, 2, "10.20.6.11"))}))
	var done atomic.Bool
	result := make(chan error, 1)
	go func() {
		frame, seen := tcp4(1500).Frame(), map[byte]bool{}
		for !done.Load() {
			opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
			verdict, err := f.mux.Program().Run(&opts)
			if err != nil || verdict != xdpTX {
				result <- fmt.Errorf("verdict %d: %w", verdict, err)
				return
			}
			seen[opts.DataOut[32]] = true
		}
		var err error
		if len(seen) != len(forms) {
			err = fmt.Errorf("went to %v only", seen)
		}
		result <- err
	}()
	for i := range 150 {
		must(t, f.mux.Apply(state(i+1)))
		if i%3 > 0 {
			settle(t, f.mux) // packets meet this state
		}
	}
	done.Store(true)
	if err := <-result; err != nil {
		t.Errorf("%v: %v", err, f.reasonsNow())
	}
	must(t, f.mux.Apply(MuxState{}))
	f.checkEmpty()
}
