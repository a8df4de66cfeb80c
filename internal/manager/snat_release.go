package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/snat"
)

// ReleaseSNAT implements the API. Only a leader that serves requests for ports can execute it.
func (a api) ReleaseSNAT(ctx context.Context, req *connect.Request[apiv1.ReleaseSNATRequest]) (*connect.Response[apiv1.ReleaseSNATResponse], error) {
	q, m := req.Msg, a.m
	if q.GetKeep()%snat.RangePorts != 0 {
		return nil, fault(invalid{[]lb.Violation{{Field: "keep", Value: fmt.Sprint(q.GetKeep()), Allowed: "must be a multiple of 8, the ports of a range"}}})
	}
	holders, err := m.view.releasing(q.GetService(), q.GetDip())
	if err != nil {
		return nil, fault(err)
	}
	if q.GetForce() {
		for _, h := range holders {
			nodes := m.view.snatHosts(h)
			if !slices.ContainsFunc(nodes, func(node string) bool { return m.sessions.get(node) != nil }) {
				return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%s: its host is not connected and would go on with ports that others get: take the server out of snat once the host is stopped", h.DIP))
			}
		}
	}
	d := m.snat.Load()
	if d == nil {
		return nil, fault(notLeading{errNoLeader})
	}
	now := m.o.Clock.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	out, done, how := &apiv1.ReleaseSNATResponse{}, []string(nil), "asked back"
	if q.GetForce() {
		how = "taken"
	}
	for _, h := range holders {
		if n, _ := d.desk.Release(h, int(q.GetKeep()/snat.RangePorts), q.GetForce(), now); n > 0 {
			out.Released = append(out.Released, &apiv1.ReleasedSNAT{Vip: h.VIP.Addr.String(), Dip: h.DIP.String(), Ports: ports(n)})
			done = append(done, fmt.Sprintf("%s: %d ports of %s at %s %s", lb.Ref(lb.KindService, q.GetService()), ports(n), h.VIP.Addr, h.DIP, how))
		}
	}
	d.deliverLocked(now)
	if due := d.desk.Due(now); !due.IsZero() && (d.due.IsZero() || due.Before(d.due)) {
		d.due = due
		notify.Send(d.wake)
	}
	if len(done) > 0 {
		m.audited(m.auditEntry(ctx, done...))
	}
	return connect.NewResponse(out), nil
}

// releasing returns the servers of a service whose ports are to be released, sorted by VIP and
// address: the one at dip, or all if dip is empty.
func (v *view) releasing(service, dip string) (out []snat.Holder, err error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.state.Services[service] == nil {
		return nil, notFound{ref{lb.KindService, service}}
	}
	var one netip.Addr
	if dip != "" {
		if one, err = netip.ParseAddr(dip); err != nil {
			return nil, invalid{[]lb.Violation{{Field: "dip", Value: dip, Allowed: "must be an IPv4 address"}}}
		}
	}
	vips := slices.SortedFunc(slices.Values(v.snat.services[service]), snat.VIP.Compare)
	for _, vip := range vips {
		for _, addr := range slices.SortedFunc(maps.Keys(v.snat.vips[vip].dips), netip.Addr.Compare) {
			if !one.IsValid() || addr == one {
				out = append(out, snat.Holder{VIP: vip, DIP: addr})
			}
		}
	}
	switch {
	case len(vips) == 0:
		return nil, invalid{[]lb.Violation{{Field: "service", Value: service, Allowed: "must have snat"}}}
	case len(out) == 0:
		return nil, connect.NewError(connect.CodeNotFound, errors.New("dip: "+dip+": is not in the snat of "+lb.Ref(lb.KindService, service)))
	}
	return out, nil
}
