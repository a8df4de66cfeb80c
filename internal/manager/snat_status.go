package manager

import (
	"maps"
	"net/netip"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/snat"
)

// snatStatus tells who has which ports of the VIPs of a service, or of all.
func (v *view) snatStatus(service string) (out []*apiv1.SnatStatus) {
	if service == "" {
		return nil
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, name := range slices.SortedFunc(maps.Keys(v.snat.vips), snat.VIP.Compare) {
		conf := v.snat.vips[name]
		if service != everyService && conf.service != service {
			continue
		}
		ports := make(map[netip.Addr][]uint32, len(conf.dips))
		for dip := range conf.dips {
			ports[dip] = nil
		}
		if p := v.snat.book.Page(name); p != nil {
			p.EachLease(func(l snat.Lease) { ports[l.DIP] = append(ports[l.DIP], uint32(l.Range.Port())) })
		}
		for _, dip := range slices.SortedFunc(maps.Keys(ports), netip.Addr.Compare) {
			_, wanted := conf.dips[dip]
			out = append(out, &apiv1.SnatStatus{
				Service: conf.service, Tenant: conf.tenant, Vni: name.VNI, Vip: name.Addr.String(), Dip: dip.String(), Ports: ports[dip], Gone: !wanted,
			})
		}
	}
	return out
}
