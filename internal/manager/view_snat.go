package manager

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/snat"
	"github.com/shuntlb/shunt/internal/store"
)

// Leases are stored as a log of packed batches, one for each transaction, and a packed page for
// each VIP, written when the log was truncated. Pages are listed before the log, so a fresh load
// reads a page and then the later batches.
const (
	dirSNAT      = root + "snat/"
	dirSNATPages = dirSNAT + "base/"
	dirSNATLog   = dirSNAT + "log/"
)

func snatPageKey(v snat.VIP) string { return fmt.Sprintf("%s%d/%s", dirSNATPages, v.VNI, v.Addr) }
func snatLogKey(n uint64) string    { return fmt.Sprintf("%s%016x", dirSNATLog, n) }

// parseSNATPageKey returns the VIP of a page's key.
func parseSNATPageKey(key string) (snat.VIP, error) {
	vni, addr, ok := strings.Cut(strings.TrimPrefix(key, dirSNATPages), "/")
	n, err := strconv.ParseUint(vni, 10, 32)
	if err != nil || !ok {
		return snat.VIP{}, fmt.Errorf("must be snat/base/VNI/VIP")
	}
	a, err := netip.ParseAddr(addr)
	return snat.VIP{VNI: uint32(n), Addr: a}, err
}

// maxRecentSNAT is the number of batches kept for muxes that are slightly behind. Others receive a
// snapshot.
const maxRecentSNAT = 1024

// snatView is the SNAT state of the view.
type snatView struct {
	book *snat.Book
	// rev is the revision of the last batch. recent holds the last batches without a gap, the
	// oldest first.
	rev    int64
	recent []snatBatch
	// vips holds the VIPs for which objects configure SNAT. services lists those of each service.
	vips     map[snat.VIP]*snatVIP
	services map[string][]snat.VIP
	// conf counts the changes of vips, and of the muxes that serve them.
	conf int64
}

type snatBatch struct {
	rev int64
	raw []byte
}

// snatVIP is the configuration of a VIP with SNAT, from objects. It is never modified.
type snatVIP struct {
	service, tenant string
	// since is the revision that created the service. If a mux's tables are full, older services
	// take precedence.
	since  int64
	dips   map[netip.Addr]snatDIP
	closed *snat.Bitmap
}

// snatDIP is the location of a DIP.
type snatDIP struct{ host, outer netip.Addr }

func newSNATView() snatView {
	return snatView{book: snat.NewBook(), vips: map[snat.VIP]*snatVIP{}, services: map[string][]snat.VIP{}}
}

// foldSNATLocked applies a batch or a page.
func (v *view) foldSNATLocked(ev store.Event, c *change) error {
	s := &v.snat
	if strings.HasPrefix(ev.KV.Key, dirSNATPages) {
		if ev.Deleted {
			name, err := parseSNATPageKey(ev.KV.Key)
			if err == nil {
				s.book.Drop(name)
			}
			return err
		}
		name, through, err := snat.PeekPage(ev.KV.Value)
		if err != nil {
			return err
		}
		s.rev = max(s.rev, ev.KV.ModRevision)
		if s.book.Stored(name, through) {
			return nil
		}
		p, err := snat.UnpackPage(ev.KV.Value)
		if err != nil {
			return err
		}
		if old := s.book.Page(p.VIP); old == nil || old.Through < p.Through {
			s.recent, c.snatLeases = nil, true // batches are missing
		}
		s.book.Load(p)
		return nil
	}
	if ev.Deleted {
		n, err := strconv.ParseUint(strings.TrimPrefix(ev.KV.Key, dirSNATLog), 16, 64)
		if err == nil {
			s.book.DropBatch(n)
		}
		return err
	}
	var b snat.Batch
	if err := b.Unpack(ev.KV.Value); err != nil {
		return err
	}
	if err := s.book.Fold(&b, len(ev.KV.Value)); err != nil {
		return err
	}
	if len(s.recent) == 2*maxRecentSNAT {
		s.recent = slices.Clone(s.recent[maxRecentSNAT:])
	}
	s.recent = append(s.recent, snatBatch{ev.KV.ModRevision, ev.KV.Value})
	s.rev, c.snatLeases = max(s.rev, ev.KV.ModRevision), true
	return nil
}

// reconfigureSNATLocked updates the SNAT configuration from objects that changed.
func (v *view) reconfigureSNATLocked(changed []ref, c *change) {
	s := &v.snat
	for _, r := range changed {
		if r.kind == lb.KindTenant || r.kind == lb.KindNode || r.kind == lb.KindNetwork {
			c.snatConf = c.snatConf || len(s.vips) > 0
		}
		if r.kind != lb.KindService {
			continue
		}
		for _, name := range s.services[r.name] {
			delete(s.vips, name)
			c.snatConf = true
		}
		delete(s.services, r.name)
		rec := v.records[r]
		if rec == nil {
			continue
		}
		svc := rec.obj.(*lb.Service)
		if len(svc.SNAT) == 0 {
			continue
		}
		c.snatConf = true
		conf := snatOf(svc)
		conf.since = rec.created
		for _, vip := range snatVIPsOf(svc) {
			name := snat.VIP{Addr: vip}
			s.vips[name] = conf
			s.services[r.name] = append(s.services[r.name], name)
		}
	}
	if c.snatConf {
		s.conf++
	}
}

// snatOf returns the SNAT configuration of each VIP of a service.
func snatOf(svc *lb.Service) *snatVIP {
	out := &snatVIP{service: svc.Name, tenant: svc.Tenant, dips: map[netip.Addr]snatDIP{}}
	var ports [][2]uint16
	for i := range svc.Endpoints {
		e := &svc.Endpoints[i]
		ports = append(ports, [2]uint16{e.Port, max(e.Port, e.PortEnd)})
	}
	for dip, host := range svc.SNATHosts() {
		out.dips[dip] = snatDIP{host: host, outer: lb.Outer(dip, host)}
	}
	out.closed = snat.Closed(ports...)
	return out
}

// snatConfigs returns the VIPs with SNAT as configuration for the allocator, with the count of
// changes.
func (v *view) snatConfigs() (map[snat.VIP]*snat.Config, int64) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := make(map[snat.VIP]*snat.Config, len(v.snat.vips))
	for name, s := range v.snat.vips {
		c := &snat.Config{Tenant: s.tenant, Closed: *s.closed, DIPs: slices.SortedFunc(maps.Keys(s.dips), netip.Addr.Compare), Quarantine: v.networks.SNATTimes(name.Addr).Quarantine}
		if t := v.state.Tenants[s.tenant]; t != nil {
			c.Weight = t.Weight
			c.PerDIP, c.PerTenant = snatLimit(t.Quotas.SNATPortsPerDIP), snatLimit(t.Quotas.SNATPorts)
		}
		out[name] = c
	}
	return out, v.snat.conf
}

// snatLimit converts ports to ranges, rounding down. It returns at least one for a limit, because 0
// means no limit.
func snatLimit(ports uint32) int {
	if ports == 0 {
		return 0
	}
	return max(1, int(ports)/snat.RangePorts)
}

// snatHosts returns the names of the nodes at which a holder is.
func (v *view) snatHosts(h snat.Holder) []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if s := v.snat.vips[h.VIP]; s != nil {
		if d, ok := s.dips[h.DIP]; ok {
			return v.wanted.NodesAt(d.host)
		}
	}
	return nil
}

// snatAt reports whether a holder is at a node.
func (v *view) snatAt(h snat.Holder, node string) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	s, n := v.snat.vips[h.VIP], v.state.Nodes[node]
	return s != nil && n != nil && s.dips[h.DIP].host.IsValid() && slices.Contains(n.Addresses, s.dips[h.DIP].host)
}

// snatMuxVIPsLocked returns the VIPs with SNAT that a mux serves, in the format of an update. The
// oldest services are first, in the same order at every manager and in every term.
func (v *view) snatMuxVIPsLocked(mux string) []*apiv1.SnatVIP {
	names := make([]snat.VIP, 0, len(v.snat.vips))
	for name := range v.snat.vips {
		if v.servesLocked(mux, plan.VIPKey(name.Addr)) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b snat.VIP) int {
		return cmp.Or(cmp.Compare(v.snat.vips[a].since, v.snat.vips[b].since), a.Compare(b))
	})
	out := make([]*apiv1.SnatVIP, 0, len(names))
	for _, name := range names {
		s := v.snat.vips[name]
		m := &apiv1.SnatVIP{Vni: name.VNI, Vip: name.Addr.String(), Service: s.service}
		for _, dip := range slices.SortedFunc(maps.Keys(s.dips), netip.Addr.Compare) {
			m.Dips = append(m.Dips, &apiv1.SnatDIP{Dip: dip.String(), Outer: s.dips[dip].outer.String(), Encap: v.networks.Encap(name.Addr)})
		}
		out = append(out, m)
	}
	return out
}

// snatMovedLocked makes muxes receive their VIPs with SNAT again if the set of muxes that serves
// the VIP changed.
func (v *view) snatMovedLocked(vip place.Key, c *change) {
	if v.snat.vips[snat.VIP{VNI: vip.VNI, Addr: vip.VIP}] != nil && !c.snatConf {
		v.snat.conf++
		c.snatConf = true
	}
}

// muxNames returns the names of all Nodes of role mux.
func (v *view) muxNames() map[string]bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := map[string]bool{}
	for name := range v.muxes {
		out[name] = true
	}
	return out
}
