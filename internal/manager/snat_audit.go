package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/snat"
)

const (
	// auditVIPs is the number of VIPs in one request to a node: a full page has 33 KB.
	auditVIPs = 16
	// maxDifferences is the maximum number of differences listed per node.
	maxDifferences = 100
)

// errOtherLeases: the answer of a node does not match the request.
var errOtherLeases = errors.New("told of other VIPs than those that it was asked about")

// AuditSNAT implements the API. It queries muxes and hosts over their streams.
func (a api) AuditSNAT(ctx context.Context, req *connect.Request[apiv1.AuditSNATRequest]) (*connect.Response[apiv1.AuditSNATResponse], error) {
	m, service := a.m, req.Msg.GetService()
	if service != "" {
		if _, objs := m.view.objects(lb.KindService, service); len(objs) == 0 {
			return nil, fault(notFound{ref{lb.KindService, service}})
		}
	}
	var audits []*snatAudit
	for _, mux := range m.reports.muxes() {
		audits = append(audits, &snatAudit{m: m, node: mux, role: lb.RoleMux, vips: m.view.snatVIPsOfMux(service, mux)})
	}
	m.view.mu.RLock()
	for name, n := range m.view.state.Nodes {
		if n.Role == lb.RoleHost && m.sessions.get(name) != nil {
			audits = append(audits, &snatAudit{m: m, node: name, role: lb.RoleHost})
		}
	}
	m.view.mu.RUnlock()
	audits = slices.DeleteFunc(audits, func(a *snatAudit) bool {
		if a.role == lb.RoleHost {
			a.vips = m.view.snatVIPs(service, a.node)
		}
		return len(a.vips) == 0
	})
	slices.SortFunc(audits, func(a, b *snatAudit) int { return cmp.Compare(a.node, b.node) })
	nodes := askAll(audits, func(a *snatAudit) *apiv1.SnatNodeAudit { return a.run(ctx) })
	return connect.NewResponse(&apiv1.AuditSNATResponse{Nodes: nodes}), nil
}

// snatVIPs returns the VIPs with SNAT of a service, or of all services if service is empty, in
// order. With a node it returns only those of which the node has a DIP.
func (v *view) snatVIPs(service, node string) (out []snat.VIP) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, name := range slices.SortedFunc(maps.Keys(v.snat.vips), snat.VIP.Compare) {
		conf := v.snat.vips[name]
		if service != "" && conf.service != service {
			continue
		}
		if n := v.state.Nodes[node]; node == "" || n != nil && conf.at(n.Addresses) {
			out = append(out, name)
		}
	}
	return out
}

// snatVIPsOfMux returns those VIPs of snatVIPs that a mux serves.
func (v *view) snatVIPsOfMux(service, mux string) []snat.VIP {
	vips := v.snatVIPs(service, "")
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.DeleteFunc(vips, func(name snat.VIP) bool { return !v.servesLocked(mux, plan.VIPKey(name.Addr)) })
}

// at reports whether a DIP is at one of the addresses.
func (s *snatVIP) at(addresses []netip.Addr) bool {
	for _, d := range s.dips {
		if slices.Contains(addresses, d.host) {
			return true
		}
	}
	return false
}

// snatAudit compares the leases that one node has with the stored ones.
type snatAudit struct {
	m    *Manager
	node string
	role lb.Role
	vips []snat.VIP
	out  *apiv1.SnatNodeAudit
}

func (a *snatAudit) run(ctx context.Context) *apiv1.SnatNodeAudit {
	a.out = &apiv1.SnatNodeAudit{Node: a.node, Role: string(a.role)}
	for vips := range slices.Chunk(a.vips, auditVIPs) {
		if err := a.ask(ctx, vips); err != nil {
			a.out.Error = err.Error()
			break
		}
	}
	return a.out
}

// ask requests the leases of some VIPs from the node and compares them.
func (a *snatAudit) ask(ctx context.Context, vips []snat.VIP) error {
	before := a.m.view.snatPages(vips)
	report, err := a.m.ask(ctx, a.node, func(id uint64) *apiv1.PlanUpdate {
		q := &apiv1.SnatWordsQuestion{Id: id}
		for _, v := range vips {
			q.Vips = append(q.Vips, &apiv1.SnatVIP{Vni: v.VNI, Vip: v.Addr.String()})
		}
		return &apiv1.PlanUpdate{SnatWords: q}
	})
	if err != nil {
		return err
	}
	said := report.GetSnatWords().GetResult()
	switch {
	case said == nil:
		return errNoAnswer
	case said.GetError() != "":
		return errors.New(said.GetError())
	case len(said.GetPages()) != len(vips):
		return errOtherLeases
	case a.role == lb.RoleMux && said.GetRevision() == 0:
		return errors.New("has not loaded the leases yet")
	}
	wait, cancel := context.WithTimeout(ctx, a.m.o.TraceTimeout)
	defer cancel()
	if err := a.m.view.wait(wait, said.GetRevision()); err != nil {
		return fmt.Errorf("has leases of revision %d, which this manager does not have: %w", said.GetRevision(), err)
	}
	if r := said.GetRevision(); r != 0 && (a.out.Revision == 0 || r < a.out.Revision) {
		a.out.Revision = r
	}
	for i, raw := range said.GetPages() {
		page, err := saidPage(vips[i], raw)
		if err != nil {
			return err
		}
		if err := a.compare(page, said.GetRevision(), before[i]); err != nil {
			return err
		}
	}
	return nil
}

// saidPage decodes the node's leases of a VIP.
func saidPage(v snat.VIP, raw []byte) (*snat.Page, error) {
	if len(raw) == 0 {
		return snat.PageOf(v, nil)
	}
	page, err := snat.UnpackPage(raw)
	if err == nil && page.VIP != v {
		err = errOtherLeases
	}
	return page, err
}

// compare compares every range of a VIP. before holds the stored leases at the time of the request.
func (a *snatAudit) compare(said *snat.Page, revision int64, before *snat.Page) error {
	v := a.m.view
	v.mu.RLock()
	defer v.mu.RUnlock()
	conf, stored := v.snat.vips[said.VIP], v.snat.book.Page(said.VIP)
	if conf == nil {
		return nil // it was removed meanwhile
	}
	moving := &snat.Bitmap{}
	if a.role == lb.RoleMux {
		var err error
		if moving, err = v.snat.since(said.VIP, revision); err != nil {
			return err
		}
	} else if stored != nil {
		for _, r := range stored.Rests() {
			moving.Set(r.Range) // the host may not have received the revocation
		}
	}
	a.out.Vips++
	for r := range snat.Range(snat.Ranges) {
		has := dipOf(stored, r)
		says, _ := said.DIP(r)
		_, wanted := conf.dips[has]
		switch {
		case !has.IsValid() && !says.IsValid():
			continue
		case a.role == lb.RoleHost && !says.IsValid():
			continue // it is another host's, or on its way
		case moving.Has(r), has.IsValid() && !wanted:
			a.out.Moving++
			continue
		case says == has, a.role == lb.RoleHost && says == dipOf(before, r):
			a.out.Ranges++
			continue
		}
		a.out.Ranges++
		if a.out.Different++; a.out.Different <= maxDifferences {
			a.out.Differences = append(a.out.Differences, &apiv1.SnatDifference{
				Vni: said.VIP.VNI, Vip: said.VIP.Addr.String(), Port: uint32(r.Port()), Stored: addrOrNone(has), Said: addrOrNone(says),
			})
		}
	}
	return nil
}

func dipOf(p *snat.Page, r snat.Range) netip.Addr {
	if p == nil {
		return netip.Addr{}
	}
	dip, _ := p.DIP(r)
	return dip
}

func addrOrNone(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// snatPages returns copies of the stored leases of VIPs, nil for a VIP without any.
func (v *view) snatPages(vips []snat.VIP) []*snat.Page {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := make([]*snat.Page, len(vips))
	for i, name := range vips {
		if p := v.snat.book.Page(name); p != nil {
			out[i] = p.Clone()
		}
	}
	return out
}

// since returns the ranges of a VIP that were leased or freed after a revision.
func (s *snatView) since(name snat.VIP, revision int64) (*snat.Bitmap, error) {
	out := &snat.Bitmap{}
	if revision >= s.rev {
		return out, nil
	}
	first := sort.Search(len(s.recent), func(i int) bool { return s.recent[i].rev > revision })
	if first == 0 && revision > 1 { // revision 1 is that of an empty store
		return nil, fmt.Errorf("is too far behind: it has leases of revision %d, the newest is %d", revision, s.rev)
	}
	for _, recent := range s.recent[first:] {
		var b snat.Batch
		if err := b.Unpack(recent.raw); err != nil {
			return nil, err
		}
		for i := range b.Sections {
			if b.Sections[i].VIP != name {
				continue
			}
			for _, l := range b.Sections[i].Leased {
				out.Set(l.Range)
			}
			for _, r := range b.Sections[i].Freed {
				out.Set(r)
			}
		}
	}
	return out, nil
}
