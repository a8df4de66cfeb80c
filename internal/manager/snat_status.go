package manager

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/snat"
)

// snatStatus returns the ports that each server holds, for the VIPs of a service, or of all
// services with everyService.
func (v *view) snatStatus(service string, own owned) (out []*apiv1.SnatStatus) {
	if service == "" {
		return nil
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, name := range slices.SortedFunc(maps.Keys(v.snat.vips), snat.VIP.Compare) {
		conf := v.snat.vips[name]
		if service != everyService && conf.service != service || !own.has(conf.service) {
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

// snatVIPStatus returns the port usage of the VIPs of a service, or of all with everyService.
func (m *Manager) snatVIPStatus(service string, own owned) (out []*apiv1.SnatVIPStatus) {
	d := m.snat.Load()
	if d == nil || service == "" {
		return nil
	}
	d.mu.Lock()
	usage := d.desk.Usage(m.o.Clock.Now())
	d.mu.Unlock()
	held := map[string]int{}
	for _, u := range usage {
		held[u.Tenant] += u.Leased
	}
	slices.SortFunc(usage, func(a, b snat.Usage) int { return a.VIP.Compare(b.VIP) })
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	for _, u := range usage {
		conf := m.view.snat.vips[u.VIP]
		if conf == nil || service != everyService && conf.service != service || !own.has(conf.service) {
			continue
		}
		st := &apiv1.SnatVIPStatus{
			Service: conf.service, Tenant: conf.tenant, Vni: u.VIP.VNI, Vip: u.VIP.Addr.String(),
			Leased: ports(u.Leased), Free: ports(u.Free), Resting: ports(u.Resting),
			DipLimit: ports(snat.DefaultRules.PerDIP), TenantLeased: ports(held[u.Tenant]),
		}
		if t := m.view.state.Tenants[conf.tenant]; t != nil {
			st.TenantLimit = t.Quotas.SNATPorts
			if n := t.Quotas.SNATPortsPerDIP; n > 0 {
				st.DipLimit = n
			}
		}
		out = append(out, st)
	}
	return out
}

func ports(ranges int) uint32 { return uint32(ranges * snat.RangePorts) }

// snatPast holds the sum of the counts of closed allocators.
type snatPast struct {
	mu     sync.Mutex
	counts snat.Counts
}

// close closes the controller's allocator and adds its counts to the past ones.
func (p *snatPast) close(d *snatDuty) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.m.snat.CompareAndSwap(d, nil) {
		p.counts.Add(d.desk.Counts())
	}
}

// snatCounts returns the counts of SNAT requests and their results since this member started.
func (m *Manager) snatCounts() *apiv1.SnatCounts {
	m.snatPast.mu.Lock()
	defer m.snatPast.mu.Unlock()
	c, out := m.snatPast.counts, &apiv1.SnatCounts{}
	if d := m.snat.Load(); d != nil {
		d.mu.Lock()
		c.Add(d.desk.Counts())
		queued, telling := d.desk.Pending()
		d.mu.Unlock()
		out.Queued, out.Telling = uint64(queued), uint64(telling)
	}
	out.Asks, out.RepeatedAsks, out.Grants, out.Granted, out.Freed, out.Silent = c.Asks, c.Repeated, c.Grants, c.Granted, c.Freed, c.Silent
	for _, r := range snat.Reasons() {
		out.Refused = append(out.Refused, &apiv1.SnatRefused{Reason: r.String(), Count: c.Refused[r]})
	}
	return out
}
