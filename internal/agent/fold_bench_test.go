package agent

import (
	"fmt"
	"net/netip"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// BenchmarkFoldOneOf20000 measures the folding of a change of one of 20,000 endpoints.
func BenchmarkFoldOneOf20000(b *testing.B) {
	up := &apiv1.PlanUpdate{Revision: 1, Epoch: 1, Snapshot: true}
	var one *apiv1.PlanItem
	for i := range 20000 {
		e := plan.Endpoint{
			Key:     lb.EndpointKey{VIP: netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}), Protocol: lb.TCP, Port: 80},
			Service: fmt.Sprint("web", i), Generation: 1, RingCode: 10, KeyID: 3, Encap: lb.EncapIPIP,
		}
		for j := range 10 {
			d := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)})
			e.Members = append(e.Members, plan.Member{ID: uint16(j + 1), DIP: d, Port: 8080, Weight: 1, Outer: d})
		}
		one = convert.EndpointItem(&e)
		up.Upsert = append(up.Upsert, one)
	}
	f, _, err := (&folded{}).with(up)
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for i := range b.N {
		f, _, err = f.with(&apiv1.PlanUpdate{Revision: int64(2 + i), Epoch: 1, Upsert: []*apiv1.PlanItem{one}})
		if err != nil {
			b.Fatal(err)
		}
	}
}
