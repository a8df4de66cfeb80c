package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// cover is a prefix around all VIPs of each family, as bpf/mux.bpf.c compares with it.
type cover struct{ v4, mask6, value6 uint64 }

// Covers that no address lies in.
const (
	nothing4 = 1
	nothing6 = 1
)

// coverOf is the longest prefixes around the VIPs; of IPv6 addresses the first 8 bytes count.
func coverOf(vips []netip.Addr) cover {
	c := cover{v4: nothing4, value6: nothing6}
	var first4, first6, differ4, differ6 uint64
	seen4, seen6 := false, false
	for _, vip := range vips {
		if vip.Is4() {
			a := vip.As4()
			v := uint64(binary.BigEndian.Uint32(a[:]))
			if !seen4 {
				first4, seen4 = v, true
			}
			differ4 |= v ^ first4
			continue
		}
		a := vip.As16()
		v := binary.BigEndian.Uint64(a[:8])
		if !seen6 {
			first6, seen6 = v, true
		}
		differ6 |= v ^ first6
	}
	if seen4 {
		mask := uint32(commonMask(differ4<<32) >> 32)
		c.v4 = uint64(be32(mask))<<32 | uint64(be32(uint32(first4)&mask))
	}
	if seen6 {
		mask := commonMask(differ6)
		c.mask6, c.value6 = be64(mask), be64(first6&mask)
	}
	return c
}

// commonMask has a one for every bit above the highest that differs.
func commonMask(differ uint64) uint64 {
	for shift := 1; shift < 64; shift *= 2 {
		differ |= differ >> shift
	}
	return ^differ
}

// be64 stores a number so that its bytes lie in network order.
func be64(v uint64) uint64 {
	return binary.NativeEndian.Uint64(binary.BigEndian.AppendUint64(nil, v))
}

// coverVIPs lets the program know the prefixes around the VIPs of the tables.
func (m *Mux) coverVIPs() error {
	var vips []netip.Addr
	for k := range m.tables.entries {
		if k.Protocol == 0 {
			vips = append(vips, k.VIP)
		}
	}
	c, v := coverOf(vips), &m.objects.muxVariables
	err := errors.Join(v.Cover4.Set(c.v4), v.Cover6Mask.Set(c.mask6), v.Cover6Value.Set(c.value6))
	if err != nil {
		return fmt.Errorf("set the prefixes around the VIPs: %w", err)
	}
	return nil
}

// coverAll makes the program search for every source, while VIPs come and go.
func (m *Mux) coverAll() error {
	v := &m.objects.muxVariables
	err := errors.Join(v.Cover4.Set(uint64(0)), v.Cover6Mask.Set(uint64(0)), v.Cover6Value.Set(uint64(0)))
	if err != nil {
		return fmt.Errorf("set the prefixes around the VIPs: %w", err)
	}
	return nil
}
