package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// guard is the interceptor behind the authenticator. It restricts tenants to their own objects and
// audits refusals.
type guard struct{ *door }

// WrapUnary implements connect.Interceptor.
func (g guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		procedure, id := req.Spec().Procedure, identityOf(ctx)
		res, err := g.unary(ctx, req, next, procedure, id)
		return res, g.judged(id, procedure, err)
	}
}

func (g guard) unary(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc, procedure string, id identity) (connect.AnyResponse, error) {
	if id.role != pki.RoleTenant {
		return next(ctx, req)
	}
	f, known := filters[procedure]
	if !known {
		return nil, denied("role tenant may not call %s", path.Base(procedure))
	}
	ask, _ := req.Any().(proto.Message)
	s := g.scope(id)
	g.reached(s, f, procedure, ask)
	if f.asks != nil {
		if err := f.asks(s, ask); err != nil {
			return nil, err
		}
	}
	unused, err := g.spend(id, ask)
	if err != nil {
		return nil, err
	}
	done, err := g.turn(ctx, id.tenant, ask)
	if err != nil {
		unused(false)
		return nil, err
	}
	defer done()
	res, err := next(ctx, req)
	if err != nil {
		unused(connect.CodeOf(err) != connect.CodeUnavailable)
		return nil, s.discreet(ask, err)
	}
	answer, _ := res.Any().(proto.Message)
	if !changed(answer) {
		unused(true)
	}
	if f.gets != nil {
		if _, err := f.gets(s, ask, answer); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// spend takes one of the tenant's changes for a request that writes. unused returns it, and takes
// one of the tenant's dry runs instead if the request was computed. A dry run takes one of its own,
// which is used up whatever the result.
func (g guard) spend(id identity, req proto.Message) (unused func(computed bool), err error) {
	w, ok := req.(interface{ GetDryRun() bool })
	if !ok {
		return func(bool) {}, nil
	}
	quota := g.view.changesPerMinute(id.tenant)
	if w.GetDryRun() {
		return func(bool) {}, g.take(g.dryRuns, id.tenant, "dry runs", max(quota, dryRunsPerMinute))
	}
	unused = func(computed bool) {
		// A computed request that is refused or changes nothing counts as a dry run. If those are
		// used up, it counts as a change.
		if !computed || g.dryRuns.take(id.tenant, max(quota, dryRunsPerMinute), g.clock.Now()) == 0 {
			g.rates.giveBack(id.tenant)
		}
	}
	return unused, g.take(g.rates, id.tenant, "quotas.changes", quota)
}

// take takes one of perMinute tokens, or returns an error that names the quota.
func (g guard) take(from *rates, tenant, what string, perMinute uint32) error {
	wait := from.take(tenant, perMinute, g.clock.Now())
	if wait == 0 {
		return nil
	}
	used := fmt.Sprintf("%s: %d a minute are used up", what, perMinute)
	g.event(quotaEvent(tenant, used))
	return tooMany(fmt.Sprintf("tenants/%s: %s", tenant, used), wait)
}

// changed reports whether a response is that of a change.
func changed(res proto.Message) bool {
	r, ok := res.(interface{ GetChanges() []*apiv1.Change })
	if !ok {
		return true
	}
	for _, ch := range r.GetChanges() {
		if ch.GetAction() != apiv1.Change_ACTION_UNCHANGED {
			return true
		}
	}
	return false
}

// changesPerMinute returns a tenant's quota, or the default.
func (v *view) changesPerMinute(tenant string) uint32 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if r := v.records[ref{lb.KindTenant, tenant}]; r != nil {
		return cmp.Or(r.obj.(*lb.Tenant).Quotas.Changes, lb.DefaultQuotas.Changes)
	}
	return lb.DefaultQuotas.Changes
}

// WrapStreamingClient implements connect.Interceptor. It has no effect in a server.
func (g guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (g guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		procedure, id := conn.Spec().Procedure, identityOf(ctx)
		if id.role == pki.RoleTenant {
			f, known := filters[procedure]
			if !known {
				return g.judged(id, procedure, denied("role tenant may not call %s", path.Base(procedure)))
			}
			ctx = g.withTurns(ctx, id.tenant)
			conn = &scopedConn{StreamingHandlerConn: conn, guard: g, filter: f, scope: g.scope(id)}
		}
		err := next(ctx, conn)
		if end := snapped(ctx); end != nil {
			return end
		}
		return g.judged(id, procedure, err)
	}
}

// scopedConn is a stream to a tenant.
type scopedConn struct {
	connect.StreamingHandlerConn
	guard  guard
	filter filter

	mu    sync.Mutex
	scope *scope
	req   proto.Message
}

// Receive implements connect.StreamingHandlerConn.
func (c *scopedConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.req, _ = m.(proto.Message)
	c.guard.reached(c.scope, c.filter, c.Spec().Procedure, c.req)
	if c.filter.asks == nil {
		return nil
	}
	return c.filter.asks(c.scope, c.req)
}

// Send implements connect.StreamingHandlerConn.
func (c *scopedConn) Send(m any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer, ok := m.(proto.Message); ok && c.filter.gets != nil {
		if worth, err := c.filter.gets(c.scope, c.req, answer); err != nil || !worth {
			return err
		}
	}
	return c.StreamingHandlerConn.Send(m)
}

// reached audits a request for another tenant's object whose response is as empty as for an object
// that does not exist.
func (g guard) reached(s *scope, f filter, procedure string, req proto.Message) {
	if f.names == nil {
		return
	}
	r := f.names(req)
	if cause := s.hidden(r); cause != "" {
		_ = g.refused(s.identity, procedure, cause, connect.NewError(connect.CodeNotFound, notFound{r}))
	}
}

// judged audits an error of the API that is a refusal, and returns the error for the caller.
func (g guard) judged(id identity, procedure string, err error) error {
	var refusal *connect.Error
	if over := (overReach{}); errors.As(err, &over) && errors.As(over.says, &refusal) {
		return g.refused(id, procedure, over.cause, refusal)
	}
	if !errors.As(err, &refusal) {
		return err
	}
	if errors.Is(err, errSurplus) || errors.Is(err, errCrowded) {
		return err // the node goes to another manager, or waits for its turn: nothing was refused
	}
	switch refusal.Code() {
	case connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeResourceExhausted:
		return g.refused(id, procedure, "", refusal)
	}
	return err
}
