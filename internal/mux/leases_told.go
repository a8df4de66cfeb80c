package mux

import (
	"net/netip"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/snat"
)

// Words implements agent.Leases. It returns the leases that packets find in the tables, and their
// revision.
func (l *Leases) Words(q *apiv1.SnatWordsQuestion) *apiv1.SnatWords {
	l.hearing.Lock()
	defer l.hearing.Unlock()
	tables, ok := l.tables.(dataplane.SNATTeller)
	if !ok {
		return &apiv1.SnatWords{Error: "its data plane does not tell who has which ports"}
	}
	out := &apiv1.SnatWords{Revision: l.Revision()}
	if l.loading {
		out.Revision = 0 // the tables hold the leases from before the snapshot
	}
	for _, in := range q.GetVips() {
		addr, err := netip.ParseAddr(in.GetVip())
		if err != nil || !addr.Is4() {
			return &apiv1.SnatWords{Error: "vip: " + in.GetVip() + ": must be an IPv4 address"}
		}
		raw, err := l.pageTold(tables, snat.VIP{VNI: in.GetVni(), Addr: addr})
		if err != nil {
			return &apiv1.SnatWords{Error: err.Error()}
		}
		out.Pages = append(out.Pages, raw)
	}
	return out
}

// pageTold returns a VIP's page as it is in the tables; nil: they have none. Tables hold tunnel
// destinations, not owners: an entry that does not lead to its DIP's host appears as the address
// that it leads to.
func (l *Leases) pageTold(tables dataplane.SNATTeller, vip snat.VIP) ([]byte, error) {
	to, words, ok := tables.SNATWords(vip)
	if !ok {
		return nil, nil
	}
	if v := l.vips[vip]; v != nil {
		for i, m := range v.members {
			if i < len(to) && m.Outer == to[i] {
				to[i] = m.DIP
			}
		}
	}
	var leases []snat.Lease
	for r, w := range words {
		if w != 0 && int(w) <= len(to) && to[w-1].Is4() {
			leases = append(leases, snat.Lease{DIP: to[w-1], Range: snat.Range(r)})
		}
	}
	p, err := snat.PageOf(vip, leases)
	if err != nil {
		return nil, err
	}
	return p.Pack(nil), nil
}
