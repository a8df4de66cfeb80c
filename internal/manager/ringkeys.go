package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// clusterRingKey is the id of the ring key that all muxes have. Later ones are secrets of managers
// only (plan.RingKeyOf).
const clusterRingKey = 1

// errRingBreaks reports that connections of endpoints with affinity hash would move to other
// backends, and hosts could not send them back.
var errRingBreaks = errors.New("connections of endpoints with affinity hash go to other backends at once, and hosts cannot send them to the former ones")

// newRingKey returns the change that stores a new random key.
func (m *Manager) newRingKey(id uint32) (store.Op, error) {
	key := fmt.Sprint(dirRingKeys, id)
	sealed, err := m.secrets.sealKey(key, plan.Key{ID: id, Key: newKey()})
	if err != nil {
		return store.Op{}, fmt.Errorf("make ring key: %w", err)
	}
	return store.Put(key, sealed), nil
}

// ringKeyOf returns the ring key that an endpoint must have: it keeps its own, because another one
// moves flows. An endpoint that had no owner has no flows, and gets the newest.
func (w *write) ringKeyOf(key lb.EndpointKey, st *plan.EndpointState, known bool) uint32 {
	switch {
	case w.ringKey != 0:
		return w.ringKey
	case known && w.base.owner(key).svc != nil:
		return st.KeyID
	}
	return w.base.keyID
}

// RotateRing implements the API.
func (a api) RotateRing(ctx context.Context, req *connect.Request[apiv1.RotateRingRequest]) (*connect.Response[apiv1.RotateRingResponse], error) {
	if q := req.Msg; q.GetAll() == (len(q.GetScopes()) > 0) {
		return nil, fault(invalid{[]lb.Violation{{Field: "scopes", Allowed: "must have VIPs or services, or all must be set"}}})
	}
	out, err := a.m.rotateRing(ctx, req.Msg)
	if err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(out), nil
}

// rotateRing gives endpoints a new ring key, in transactions that do not delay other writes for
// long. If it fails after the first of them, some endpoints have the new key and others the
// previous one. Each is valid by itself, and a repeated call gives all of them a newer one.
func (m *Manager) rotateRing(ctx context.Context, req *apiv1.RotateRingRequest) (*apiv1.RotateRingResponse, error) {
	out := &apiv1.RotateRingResponse{}
	keys, moved, err := m.view.ringScopes(req.GetScopes())
	if err != nil {
		return nil, err
	}
	if old := m.ringlessNodes(); len(old) > 0 {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("nodes run builds that do not follow rotations of ring keys: %s: upgrade them first", fewNames(old)))
	}
	if len(moved) > 0 && !req.GetForce() {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%w: %s: must be confirmed (--yes)", errRingBreaks, fewNames(moved)))
	}
	out.Moved = moved
	var id uint32
	for first := true; len(keys) > 0 || first; first = false {
		some := keys[:min(len(keys), keepOps)]
		keys = keys[len(some):]
		if out.Revision, id, err = m.moveRings(ctx, some, id); err != nil {
			return nil, err
		}
		out.Endpoints += uint32(len(some))
	}
	return out, nil
}

// moveRings makes endpoints hash with the ring key of an id, and stores a new one first if id is 0.
// It deletes keys that no endpoint needs.
func (m *Manager) moveRings(ctx context.Context, keys []lb.EndpointKey, id uint32) (revision int64, used uint32, err error) {
	for range maxAttempts {
		if revision, used, err = m.tryMoveRings(ctx, keys, id); !errors.Is(err, errKeysConflict) {
			break
		}
	}
	return revision, used, err
}

func (m *Manager) tryMoveRings(ctx context.Context, keys []lb.EndpointKey, id uint32) (int64, uint32, error) {
	t, err := m.lead(ctx)
	if err != nil {
		return 0, 0, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	w, c := newWrite(m.view.snapshot()), m.conditions()
	if id == 0 {
		id = max(w.base.keyID, clusterRingKey) + 1
		op, err := m.newRingKey(id)
		if err != nil {
			return 0, 0, err
		}
		w.txn.Ops = append(w.txn.Ops, op)
	}
	w.ringKey = id
	for _, key := range keys {
		if own := w.base.owner(key); own.ep != nil {
			if err := w.advance(key, own, c); err != nil {
				return 0, 0, err
			}
		}
	}
	for _, old := range m.view.unusedRingKeys(id) {
		w.txn.Ops = append(w.txn.Ops, store.Delete(fmt.Sprint(dirRingKeys, old)))
	}
	entry := m.auditEntry(ctx, fmt.Sprintf("ring keys of %d endpoints rotated", len(keys)))
	op, err := t.auditOp(entry)
	if err != nil {
		return 0, 0, err
	}
	w.txn.Ops = append(w.txn.Ops, op)
	res, err := t.commit(ctx, w.fenced())
	if err != nil {
		return 0, 0, err
	}
	if err := t.wait(ctx, res.Revision); err != nil {
		return 0, 0, err
	}
	if !res.Succeeded {
		return 0, id, errKeysConflict
	}
	m.auditDone(entry, res.Revision)
	m.stepped(w.steps, res.Revision)
	return res.Revision, id, nil
}

// unusedRingKeys returns the ids of secrets that no endpoint and no history needs, except a new
// one.
func (v *view) unusedRingKeys(but uint32) (out []uint32) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	used := map[uint32]bool{but: true, clusterRingKey: true}
	for _, st := range v.state.Endpoints {
		used[st.KeyID] = true
		for i := range st.History {
			used[st.History[i].KeyID] = true
		}
	}
	for _, k := range v.state.RingKeys {
		if !used[k.ID] {
			out = append(out, k.ID)
		}
	}
	return out
}

// ringlessNodes returns the connected nodes whose builds do not support a rotation of ring keys,
// sorted, because their muxes would keep the cluster's key.
func (m *Manager) ringlessNodes() (out []string) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	for name, n := range m.view.state.Nodes {
		if !isNodeRole(string(n.Role)) {
			continue
		}
		if said := m.reports.newest([]string{name})[0]; said.status.GetConnected() && said.reported && !said.status.GetRotatesRings() {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// repairsRotationLocked reports whether hosts send connections of an endpoint to their previous
// backends after its ring key was replaced. They find these by the last change only, so that an
// endpoint with another change within its repair window loses connections.
func (v *view) repairsRotationLocked(key lb.EndpointKey, ep *lb.Endpoint) bool {
	return ep.Protocol == lb.TCP && ep.Repairs() > 0 && ep.Rewrite == lb.RewriteHost && len(v.state.Endpoints[key].History) == 0
}

// ringScopes returns the endpoints of VIPs and services, or all without scopes, sorted, and those
// of them whose connections break when the key is replaced.
func (v *view) ringScopes(scopes []string) (keys []lb.EndpointKey, moved []string, err error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	vips := map[netip.Addr]bool{}
	for i, scope := range scopes {
		if vip, err := netip.ParseAddr(scope); err == nil && v.vips.claims[plan.VIPKey(vip)] != nil {
			vips[vip] = true
			continue
		}
		svc := v.state.Services[scope]
		if svc == nil {
			return nil, nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("scopes[%d]: %q: no service has this name or VIP", i, scope))
		}
		for _, vip := range svc.VIPs {
			vips[vip] = true
		}
	}
	for key, own := range v.owners {
		if len(scopes) > 0 && !vips[key.VIP] {
			continue
		}
		keys = append(keys, key)
		if own.ep.Affinity == lb.AffinityHash && !own.ep.OnePacket && !v.repairsRotationLocked(key, own.ep) {
			moved = append(moved, own.svc.Name+": "+plan.FormatKey(key))
		}
	}
	slices.SortFunc(keys, plan.CompareKeys)
	slices.SortFunc(moved, cmp.Compare[string])
	return keys, moved, nil
}
