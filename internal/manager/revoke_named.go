package manager

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// revokeNamed revokes a join token, or the certificates of a node or a manager.
func (m *Manager) revokeNamed(ctx context.Context, kind, name string) error {
	if kind != "token" && !nodeName.MatchString(name) {
		return fault(invalid{[]lb.Violation{{Field: "id", Value: name, Allowed: allowedNodeName}}})
	}
	switch kind {
	case "token":
		return m.revokeToken(ctx, name)
	case "node":
		return m.revokeNode(ctx, name)
	case "manager":
		return m.revokeManager(ctx, name)
	}
	return fault(invalid{[]lb.Violation{{Field: "kind", Value: kind, Allowed: "must be node, manager or token, or empty"}}})
}

// revokeToken deletes a join token.
func (m *Manager) revokeToken(ctx context.Context, id string) error {
	t, err := m.lead(ctx)
	if err != nil {
		return fault(err)
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	m.view.mu.RLock()
	stored := m.view.tokens[id]
	m.view.mu.RUnlock()
	if stored == nil {
		// The id is not repeated, because it may be a whole token.
		return connect.NewError(connect.CodeNotFound, errors.New("join token: there is none of this id; the audit log has the ids"))
	}
	if err := t.audited(ctx, fmt.Sprintf("tokens/%s for %s %s revoked", id, stored.GetRole(), stored.GetNode()), store.Delete(dirTokens+id)); err != nil {
		return fault(err)
	}
	return nil
}

// revokeNode refuses all present certificates of a node and deletes its join tokens. Its object
// stays.
func (m *Manager) revokeNode(ctx context.Context, name string) error {
	// A node may join before its object exists.
	if _, ok := m.view.roleOf(name); !ok && !m.reports.seen(name) && len(m.view.snapshot().tokensOf(name)) == 0 {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("nodes/%s: not found: there is neither a Node, nor a join token, nor a connection of that name", name))
	}
	t, err := m.lead(ctx)
	if err != nil {
		return fault(err)
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	w := newWrite(m.view.snapshot())
	if err := w.revoke(name, t.revocation(name)); err != nil {
		return fault(err)
	}
	if err := t.audited(ctx, "certificates of nodes/"+name+" revoked", w.txn.Ops...); err != nil {
		return fault(err)
	}
	m.o.Log.Info("certificates of node revoked", "node", name, "by", identityOf(ctx).who())
	return nil
}

// revokeManager refuses all certificates of a manager, except those of keys that are admitted
// later. A member must be removed instead, which also revokes them.
func (m *Manager) revokeManager(ctx context.Context, name string) error {
	if m.o.Cluster != nil {
		cluster, err := m.clusterMembers(ctx)
		if err != nil {
			return fault(err)
		}
		if _, ok := cluster[name]; ok {
			return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("managers/%s: is a member: `shunt member remove %s` removes it and revokes its certificates", name, name))
		}
	} else if name == m.o.Name {
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("managers/%s: leads: stop it first", name))
	}
	if err := m.forgetMember(ctx, name); err != nil {
		return fault(err)
	}
	if err := m.setManagerRevocation(ctx, name, true); err != nil {
		return fault(err)
	}
	return nil
}

// setManagerRevocation revokes the certificates of a manager, or reverts that.
func (m *Manager) setManagerRevocation(ctx context.Context, name string, revoked bool, with ...store.Op) error {
	t, err := m.lead(ctx)
	if err != nil {
		return err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	if !revoked {
		return t.audited(ctx, "revocation of managers/"+name+" taken back", store.Delete(dirRevoked+managerRevocation(name)))
	}
	value, err := proto.Marshal(&apiv1.StoredRevocation{Node: name})
	if err != nil {
		return err
	}
	m.o.Log.Info("certificates of manager revoked", "manager", name, "by", identityOf(ctx).who(), "role", pki.RoleManager)
	return t.audited(ctx, "certificates of managers/"+name+" revoked", append(with, store.Put(dirRevoked+managerRevocation(name), value))...)
}

// audited commits a change with its entry of the audit log, and returns when this member's view has
// it. t.writing must be held.
func (t *term) audited(ctx context.Context, did string, ops ...store.Op) error {
	entry := t.m.auditEntry(ctx, did)
	op, err := t.auditOp(entry)
	if err != nil {
		return err
	}
	res, err := t.commit(ctx, store.Txn{Ops: append(ops, op)})
	if err != nil {
		return err
	}
	t.m.auditDone(entry, res.Revision)
	return t.wait(ctx, res.Revision)
}
