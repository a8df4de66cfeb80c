package dataplane

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// naiveRange finds the range of a port by looking at all of them.
func naiveRange(ranges []portRange, protocol lb.Protocol, port uint16) (slot uint32, ok bool) {
	for _, r := range ranges {
		if r.protocol != protocol || port < r.low || port > r.high {
			continue
		}
		if !r.allPorts() {
			return r.slot, true
		}
		slot, ok = r.slot, true
	}
	return slot, ok
}

// overlaps says whether two ranges that are not `*` have a port in common.
func overlaps(ranges []portRange) bool {
	for i, a := range ranges {
		for _, b := range ranges[:i] {
			if a.protocol == b.protocol && !a.allPorts() && !b.allPorts() && a.low <= b.high && b.low <= a.high {
				return true
			}
		}
	}
	return false
}

// drawRanges are ranges of a VIP; at most one `*` for each protocol.
func drawRanges(t *rapid.T) []portRange {
	var ranges []portRange
	var taken [256]bool
	for i := range rapid.IntRange(0, 12).Draw(t, "ranges") {
		r := portRange{protocol: rapid.SampledFrom([]lb.Protocol{lb.TCP, lb.UDP}).Draw(t, "protocol"), slot: uint32(i) + 1<<20}
		r.low = rapid.Uint16Range(1, maxPort).Draw(t, "low")
		r.high = uint16(min(maxPort, int(r.low)+rapid.IntRange(0, 9000).Draw(t, "length")))
		if !taken[r.protocol] && rapid.IntRange(0, 3).Draw(t, "all") == 0 {
			r.low, r.high, taken[r.protocol] = 0, maxPort, true
		}
		ranges = append(ranges, r)
	}
	return ranges
}

func TestPortIntervals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := drawRanges(t)
		words, err := portIntervals(ranges)
		if (err != nil) != overlaps(ranges) {
			t.Fatalf("ranges %v: %v", ranges, err)
		}
		if err != nil {
			return
		}
		if limit := 2*len(ranges) + 2; len(words) > limit {
			t.Fatalf("%d ranges made %d intervals", len(ranges), len(words))
		}
		for i, w := range words {
			if r := portRangeOf(w); r.low > r.high || portRangeWord(r) != w {
				t.Fatalf("interval %#x is %+v", w, r)
			}
			if i > 0 && (words[i-1] >= w || overlaps([]portRange{portRangeOf(words[i-1]), portRangeOf(w)})) {
				t.Fatalf("intervals %+v and %+v", portRangeOf(words[i-1]), portRangeOf(w))
			}
		}
		for _, port := range interestingPorts(ranges) {
			for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP, 1, lb.AnyProtocol} {
				slot, ok := findInterval(words, protocol, port)
				if want, has := naiveRange(ranges, protocol, port); ok != has || ok && slot != want {
					t.Fatalf("%s port %d of %v: slot %d, %v; wanted %d, %v", protocol, port, ranges, slot, ok, want, has)
				}
			}
		}
	})
}

// interestingPorts are the ends of all ranges and their neighbours.
func interestingPorts(ranges []portRange) []uint16 {
	ports := []uint16{0, 1, 80, maxPort}
	for _, r := range ranges {
		ports = append(ports, r.low-1, r.low, r.low+1, r.high-1, r.high, r.high+1)
	}
	return ports
}

// TestPortsLibEqualsGo searches the same intervals in BPF and in Go.
func TestPortsLibEqualsGo(t *testing.T) {
	u, r := newPolicyRun(t), seeded(t)
	for range 60 {
		ranges := randomRanges(r)
		words, err := portIntervals(ranges)
		if err != nil {
			t.Fatal(err)
		}
		first := r.IntN(len(u.ranges) - len(words))
		copy(u.ranges[first:], words)
		for range 200 {
			protocol, port := []lb.Protocol{lb.TCP, lb.UDP, 1}[r.IntN(3)], uint16(r.Uint32())
			if len(ranges) > 0 && r.IntN(2) == 0 {
				of := ranges[r.IntN(len(ranges))]
				port = []uint16{of.low - 1, of.low, of.high, of.high + 1}[r.IntN(4)]
			}
			in := policyPolicyIn{Span: spanWord(uint32(first), len(words)), Protocol: uint8(protocol), Port: port}
			slot, ok := findInterval(words, protocol, port)
			want := uint32(0)
			if ok {
				want = slot + 1
			}
			if got := u.run(in).Slot; got != want {
				t.Fatalf("%s port %d of %v: %d, wanted %d", protocol, port, ranges, got, want)
			}
		}
	}
}

// randomRanges are many disjoint ranges.
func randomRanges(r *rand.Rand) (ranges []portRange) {
	for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
		if r.IntN(2) == 0 {
			ranges = append(ranges, portRange{protocol, 0, maxPort, r.Uint32N(1 << 24)})
		}
		most := 1 + r.IntN(3000)
		for at := 1 + r.IntN(most); at < maxPort; at += 1 + r.IntN(most) {
			high := min(maxPort, at+r.IntN(most))
			ranges = append(ranges, portRange{protocol, uint16(at), uint16(high), r.Uint32N(1 << 24)})
			if at = high; len(ranges) > 1000 {
				break
			}
		}
	}
	return ranges
}
