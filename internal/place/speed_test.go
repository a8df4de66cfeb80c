package place

import (
	"fmt"
	"net/netip"
	"testing"
)

// BenchmarkPlace measures the same as `shunt bench place`, without its repetitions.
func BenchmarkPlace(b *testing.B) {
	for _, zones := range []int{1, 3} {
		b.Run(fmt.Sprintf("zones=%d", zones), func(b *testing.B) {
			for range b.N {
				p := New(DefaultBounds)
				for i := range 200 {
					p.SetMux(Mux{Name: fmt.Sprintf("mux%d", i), Zone: fmt.Sprint(i % zones)})
				}
				for i := range 100_000 {
					p.SetVIP(VIP{Key: Key{VIP: netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)})}, Replicas: 3})
				}
				if n := len(p.Step()); n != 100_000 {
					b.Fatalf("%d VIPs placed", n)
				}
			}
		})
	}
}
