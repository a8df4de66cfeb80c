package host

import (
	"net/netip"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/snat"
)

// Words implements agent.Leases: it returns the ranges that the host's servers may use, without a
// revision.
func (l *Leases) Words(q *apiv1.SnatWordsQuestion) *apiv1.SnatWords {
	l.mu.Lock()
	defer l.mu.Unlock()
	leases := map[snat.VIP][]snat.Lease{}
	for h, s := range l.stocks {
		usable, leaving := s.Usable()
		for _, r := range append(usable, leaving...) {
			leases[h.VIP] = append(leases[h.VIP], snat.Lease{DIP: h.DIP, Range: r})
		}
	}
	out := &apiv1.SnatWords{}
	for _, in := range q.GetVips() {
		addr, err := netip.ParseAddr(in.GetVip())
		if err != nil || !addr.Is4() {
			return &apiv1.SnatWords{Error: "vip: " + in.GetVip() + ": must be an IPv4 address"}
		}
		vip := snat.VIP{VNI: in.GetVni(), Addr: addr}
		p, err := snat.PageOf(vip, leases[vip])
		if err != nil {
			return &apiv1.SnatWords{Error: err.Error()} // two of its servers have the same range
		}
		out.Pages = append(out.Pages, p.Pack(nil))
	}
	return out
}
