package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
)

// maxWaitsFor is the maximum number of nodes that ListKeys names for one key set.
const maxWaitsFor = 100

// RotateKeys implements the API.
func (a api) RotateKeys(ctx context.Context, req *connect.Request[apiv1.RotateKeysRequest]) (*connect.Response[apiv1.RotateKeysResponse], error) {
	switch q := req.Msg; {
	case q.GetAll() == (len(q.GetScopes()) > 0):
		return nil, fault(invalid{[]lb.Violation{{Field: "scopes", Allowed: "must have VIPs or services, or all must be set"}}})
	case q.GetPurpose() != "" && q.GetPurpose() != string(plan.KeysOfCookies) && q.GetPurpose() != string(plan.KeysOfCIDs):
		return nil, fault(invalid{[]lb.Violation{{Field: "purpose", Value: q.GetPurpose(), Allowed: "must be cookie or cid"}}})
	}
	out, err := a.m.rotateKeys(ctx, req.Msg)
	if err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(out), nil
}

// rotateKeys begins rotations. It computes them again after a concurrent write.
func (m *Manager) rotateKeys(ctx context.Context, req *apiv1.RotateKeysRequest) (*apiv1.RotateKeysResponse, error) {
	for range maxAttempts {
		out, err := m.tryRotateKeys(ctx, req)
		if !errors.Is(err, errKeysConflict) {
			return out, err
		}
	}
	return nil, errKeysConflict
}

func (m *Manager) tryRotateKeys(ctx context.Context, req *apiv1.RotateKeysRequest) (*apiv1.RotateKeysResponse, error) {
	t, err := m.lead(ctx)
	if err != nil {
		return nil, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	var base *snapshot
	var steps []keyStep
	out := &apiv1.RotateKeysResponse{}
	if err := t.refuse(ctx, func() (err error) {
		base = m.view.snapshot()
		steps, out.Waiting, err = m.rotations(req, identityOf(ctx))
		return err
	}); err != nil {
		return nil, err
	}
	if out.Revision = base.planRev; len(steps) == 0 {
		return out, nil
	}
	w := newWrite(base)
	var what []string
	for _, s := range steps {
		if err := w.putKeySet(s.id, s.mod, &s.next); err != nil {
			return nil, err
		}
		what = append(what, "keys of "+s.id.words()+" rotated")
	}
	entry := m.auditEntry(ctx, what...)
	op, err := t.auditOp(entry)
	if err != nil {
		return nil, err
	}
	w.txn.Ops = append(w.txn.Ops, op)
	res, err := t.commit(ctx, w.fenced())
	if err != nil {
		return nil, err
	}
	if err := t.wait(ctx, res.Revision); err != nil {
		return nil, err
	}
	if !res.Succeeded {
		return nil, errKeysConflict
	}
	m.auditDone(entry, res.Revision)
	out.Revision = res.Revision
	for i := range steps {
		m.tellKeyStep(&steps[i], res.Revision)
	}
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	acks := m.newAcksLocked()
	for _, s := range steps {
		out.Keys = append(out.Keys, m.keysLocked(s.id, acks))
	}
	return out, nil
}

// rotations returns the steps that a request begins. With all, it also returns the keys that must
// wait.
func (m *Manager) rotations(req *apiv1.RotateKeysRequest, by identity) (steps []keyStep, waiting []*apiv1.KeySet, err error) {
	now := m.o.Clock.Now().Round(0).UTC()
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	ids, err := m.view.keysAskedLocked(req.GetScopes(), by, func(id keySetID) bool {
		return m.view.neededLocked(id) && (req.GetPurpose() == "" || req.GetPurpose() == string(id.purpose()))
	})
	if err != nil {
		return nil, nil, err
	}
	acks := m.newAcksLocked()
	var faults []lb.Violation
	for _, id := range ids {
		set, mod := m.view.keySetLocked(id)
		next, wrong := set.Rotate(newKey(), id.shuffles(), now, m.o.KeyRest)
		switch {
		case wrong == "":
			steps = append(steps, keyStep{id, mod, next, true})
		case req.GetAll():
			shown := m.keysLocked(id, acks)
			shown.Wrong = wrong
			waiting = append(waiting, shown)
		default:
			faults = append(faults, lb.Violation{Field: "keys of " + id.words(), Allowed: wrong})
		}
	}
	if len(faults) > 0 {
		return nil, nil, conflict{faults}
	}
	return steps, waiting, nil
}

// keysAskedLocked returns the keys of scopes, or all keys, that the caller may see and that fits
// accepts, sorted.
func (v *view) keysAskedLocked(scopes []string, by identity, fits func(keySetID) bool) ([]keySetID, error) {
	mine := func(svc *lb.Service) bool {
		return svc != nil && (by.role != pki.RoleTenant || svc.Tenant == by.tenant)
	}
	found := map[keySetID]bool{}
	take := func(ids ...keySetID) (some bool) {
		for _, id := range ids {
			if v.keyMods[id] != 0 && fits(id) {
				found[id], some = true, true
			}
		}
		return some
	}
	if len(scopes) == 0 {
		v.eachKeySetLocked(func(id keySetID, _ plan.KeySet, _ int64) {
			if mine(v.serviceOfLocked(id)) {
				take(id)
			}
		})
	}
	for i, scope := range scopes {
		var svc *lb.Service
		var ids []keySetID
		if vip, err := netip.ParseAddr(scope); err == nil {
			svc = v.vips.claims[plan.VIPKey(vip)]
			ids = append(ids, cookiesOf(plan.VIPKey(vip)))
		} else if svc = v.state.Services[scope]; svc != nil {
			for _, vip := range svc.VIPs {
				ids = append(ids, cookiesOf(plan.VIPKey(vip)))
			}
		}
		if !mine(svc) {
			says := connect.NewError(connect.CodeNotFound, fmt.Errorf("scopes[%d]: %q: no service has this name or VIP", i, scope))
			if svc != nil {
				return nil, overReach{says, "it is another tenant's"}
			}
			return nil, says
		}
		if !take(append(ids, cidsOf(svc.Name))...) {
			return nil, invalid{[]lb.Violation{{Field: fmt.Sprintf("scopes[%d]", i), Value: scope, Allowed: "must have an endpoint with affinity cookie whose packets are keyed for the purpose"}}}
		}
	}
	out := make([]keySetID, 0, len(found))
	for id := range found {
		out = append(out, id)
	}
	slices.SortFunc(out, func(a, b keySetID) int {
		return cmp.Or(strings.Compare(v.serviceNameLocked(a), v.serviceNameLocked(b)), compareKeySets(a, b))
	})
	return out, nil
}

// serviceNameLocked returns the name of the service that has the keys, or "".
func (v *view) serviceNameLocked(id keySetID) string {
	if svc := v.serviceOfLocked(id); svc != nil {
		return svc.Name
	}
	return ""
}

// ListKeys implements the API.
func (a api) ListKeys(ctx context.Context, req *connect.Request[apiv1.ListKeysRequest]) (*connect.Response[apiv1.ListKeysResponse], error) {
	m, by := a.m, identityOf(ctx)
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	ids, err := m.view.keysAskedLocked(req.Msg.GetScopes(), by, func(keySetID) bool { return true })
	if err != nil {
		return nil, fault(err)
	}
	out, acks := &apiv1.ListKeysResponse{}, m.newAcksLocked()
	for _, id := range ids {
		k := m.keysLocked(id, acks)
		if by.role == pki.RoleTenant {
			k.WaitsFor = nil // nodes belong to the operator
		}
		out.Keys = append(out.Keys, k)
	}
	return connect.NewResponse(out), nil
}

// keyCounts returns the number of needed keys by purpose and phase. Phases without keys have an
// entry, too.
func (m *Manager) keyCounts() []*apiv1.KeyCount {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	var out []*apiv1.KeyCount
	for _, p := range []plan.KeyPurpose{plan.KeysOfCookies, plan.KeysOfCIDs} {
		for _, phase := range plan.KeyPhases {
			out = append(out, &apiv1.KeyCount{Purpose: string(p), Phase: string(phase)})
		}
	}
	m.view.eachKeySetLocked(func(id keySetID, set plan.KeySet, _ int64) {
		if !m.view.neededLocked(id) {
			return
		}
		c := out[slices.IndexFunc(out, func(c *apiv1.KeyCount) bool {
			return c.GetPurpose() == string(id.purpose()) && c.GetPhase() == string(set.Phase)
		})]
		c.Sets++
		if since := set.Since; c.GetSince() == nil || since.Before(c.GetSince().AsTime()) {
			c.Since = timestamppb.New(since)
		}
		for _, k := range set.Keys {
			if k.Epoch == set.Mint() && (c.GetMade() == nil || k.Made.Before(c.GetMade().AsTime())) {
				c.Made = timestamppb.New(k.Made)
			}
		}
	})
	return out
}

// keysLocked returns the API message for keys.
func (m *Manager) keysLocked(id keySetID, acks acks) *apiv1.KeySet {
	set, mod := m.view.keySetLocked(id)
	out := &apiv1.KeySet{
		Purpose: string(id.purpose()), Scope: id.scope(), Service: m.view.serviceNameLocked(id), Phase: string(set.Phase), Since: timestamppb.New(set.Since),
		Idle: !m.view.neededLocked(id),
	}
	for _, k := range set.Keys {
		out.Epochs = append(out.Epochs, &apiv1.KeyEpoch{Epoch: k.Epoch, Made: timestamppb.New(k.Made), Mints: k.Epoch == set.Mint()})
	}
	if due := set.Due(m.o.KeyRest, m.lifetime(id)); !due.IsZero() && !out.Idle {
		out.Due = timestamppb.New(due)
	}
	if !out.Idle && set.Waits() {
		missing := acks.missingLocked(id, &set, mod)
		out.Waits, out.WaitsFor = uint32(len(missing)), missing[:min(len(missing), maxWaitsFor)]
	}
	return out
}
