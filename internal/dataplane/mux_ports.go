package dataplane

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// portRange is what one endpoint takes of a VIP's ports: low to high, at slot `slot` of the endpoint table.
type portRange struct {
	protocol  lb.Protocol
	low, high uint16
	slot      uint32
}

// allPorts says whether the range is `*`: it takes what no other range of its protocol takes.
func (r portRange) allPorts() bool { return r.low == 0 && r.high == maxPort }

const maxPort = 1<<16 - 1

// portRangeWord is the word of an interval (enum port_range_shift of bpf/abi.h).
func portRangeWord(r portRange) uint64 {
	return uint64(r.protocol)<<muxPortRangeShiftPORT_RANGE_PROTOCOL_SHIFT |
		uint64(r.low)<<muxPortRangeShiftPORT_RANGE_LOW_SHIFT |
		uint64(r.high)<<muxPortRangeShiftPORT_RANGE_HIGH_SHIFT | uint64(r.slot)
}

// portRangeOf is the inverse of portRangeWord.
func portRangeOf(word uint64) portRange {
	return portRange{
		protocol: lb.Protocol(word >> muxPortRangeShiftPORT_RANGE_PROTOCOL_SHIFT),
		low:      uint16(word >> muxPortRangeShiftPORT_RANGE_LOW_SHIFT),
		high:     uint16(word >> muxPortRangeShiftPORT_RANGE_HIGH_SHIFT),
		slot:     uint32(word & (1<<muxPortRangeShiftPORT_RANGE_HIGH_SHIFT - 1)),
	}
}

// portIntervals are the disjoint intervals of a VIP in the order of their words: the ranges, and in the gaps between them
// what `*` takes. Ranges of one protocol must not overlap.
func portIntervals(ranges []portRange) ([]uint64, error) {
	ranges = slices.SortedFunc(slices.Values(ranges), func(a, b portRange) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.low, b.low), cmp.Compare(a.high, b.high))
	})
	var words []uint64
	for len(ranges) > 0 {
		n := 1
		for n < len(ranges) && ranges[n].protocol == ranges[0].protocol {
			n++
		}
		of, err := protocolIntervals(ranges[:n])
		if err != nil {
			return nil, err
		}
		words, ranges = append(words, of...), ranges[n:]
	}
	return words, nil
}

// protocolIntervals are those of one protocol.
func protocolIntervals(ranges []portRange) (words []uint64, err error) {
	var rest *portRange
	next := 0 // the first port that nothing has taken yet
	gap := func(end int) {
		if rest != nil && next < end {
			words = append(words, portRangeWord(portRange{rest.protocol, uint16(next), uint16(end - 1), rest.slot}))
		}
	}
	if i := slices.IndexFunc(ranges, portRange.allPorts); i >= 0 {
		rest = &ranges[i]
	}
	for i, r := range ranges {
		if &ranges[i] == rest {
			continue
		}
		if int(r.low) < next {
			return nil, fmt.Errorf("%s ports %d-%d: port %d is in another range too", r.protocol, r.low, r.high, r.low)
		}
		gap(int(r.low))
		words = append(words, portRangeWord(r))
		next = int(r.high) + 1
	}
	gap(maxPort + 1)
	return words, nil
}

// findInterval is ports_find of bpf/lib/ports.h.
func findInterval(words []uint64, protocol lb.Protocol, port uint16) (slot uint32, ok bool) {
	want := portRangeWord(portRange{protocol: protocol, low: port, high: maxPort, slot: 1<<muxPortRangeShiftPORT_RANGE_HIGH_SHIFT - 1})
	i, exact := slices.BinarySearch(words, want)
	if !exact {
		i--
	}
	if i < 0 {
		return 0, false
	}
	r := portRangeOf(words[i])
	return r.slot, r.protocol == protocol && r.low <= port && port <= r.high
}
