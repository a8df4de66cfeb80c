package ring

import (
	"encoding/binary"
	"net/netip"
)

// SpreadHash depends only on a client's address and port. The outer sources of packets whose member
// is known without a flow hash vary with its lowest 32 bits. It is spread_hash of bpf/lib/hash.h;
// IPv4 may be mapped.
func SpreadHash(key Key, client netip.Addr, port uint16) uint64 {
	b := client.As16()
	hi, lo := binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])
	x := ((lo ^ uint64(port)) + hi*(key.K1|1)) * (key.K0 | 1)
	return (x ^ x>>32) * (key.K1 | 1) >> 32
}
