package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// memberTimeout is how long a member may take to answer.
const memberTimeout = time.Second

// errAway is the error of a member without an address in the store.
var errAway = errors.New("is not up")

// Members implements the API. It queries every member.
func (a api) Members(ctx context.Context, _ *connect.Request[apiv1.MembersRequest]) (*connect.Response[apiv1.MembersResponse], error) {
	m := a.m
	if identityOf(ctx).forwarded {
		return connect.NewResponse(&apiv1.MembersResponse{Members: []*apiv1.Member{m.self()}}), nil
	}
	known, err := m.knownMembers(ctx)
	if err != nil {
		return nil, fault(err)
	}
	names := slices.Sorted(maps.Keys(known))
	leader := m.view.leadership().name
	out := &apiv1.MembersResponse{Outside: m.o.Cluster == nil, Members: askAll(names, func(name string) *apiv1.Member {
		member := known[name]
		member.Leader = name == leader
		self, err := m.askMember(ctx, member)
		if err != nil {
			member.Error = err.Error()
			return member
		}
		member.Healthy, member.Revision, member.Nodes = true, self.GetRevision(), self.GetNodes()
		member.Version, member.Commit = self.GetVersion(), self.GetCommit()
		return member
	})}
	return connect.NewResponse(out), nil
}

// self returns this member's own entry.
func (m *Manager) self() *apiv1.Member {
	return &apiv1.Member{
		Name: m.o.Name, Address: apiAddress(m.o), Peer: m.o.Peer, Healthy: true, Version: m.o.Version, Commit: m.o.Commit,
		Revision: m.view.revision(), Nodes: m.sessions.number(),
	}
}

// number returns the number of nodes whose streams end here.
func (ss *sessions) number() uint32 {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return uint32(len(ss.byNode))
}

// knownMembers returns the members of the store's cluster and those that are up, by name.
func (m *Manager) knownMembers(ctx context.Context) (map[string]*apiv1.Member, error) {
	out := map[string]*apiv1.Member{m.o.Name: m.self()}
	if m.o.Cluster != nil {
		cluster, err := m.clusterMembers(ctx)
		if err != nil {
			return nil, err
		}
		for name, c := range cluster {
			out[name] = &apiv1.Member{Name: name, Peer: c.Peer}
		}
	}
	for _, up := range m.view.present() {
		out[up.GetName()] = &apiv1.Member{
			Name: up.GetName(), Address: up.GetAddress(), Peer: up.GetPeer(), Version: up.GetVersion(), Commit: up.GetCommit(),
		}
	}
	return out, nil
}

// clusterMembers returns the store's members by the names of their managers. The first member of a
// store that began alone keeps another name. Therefore managers that are up are found by their peer
// address.
func (m *Manager) clusterMembers(ctx context.Context) (map[string]store.ClusterMember, error) {
	members, err := m.o.Cluster.Members(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, up := range m.view.present() {
		names[up.GetPeer()] = up.GetName()
	}
	names[m.o.Peer] = m.o.Name
	out := make(map[string]store.ClusterMember, len(members))
	for _, c := range members {
		name := cmp.Or(names[c.Peer], c.Name)
		if c.Peer == "" {
			name = m.o.Name
		}
		out[name] = c
	}
	return out, nil
}

// present returns the members that are up, sorted by name.
func (v *view) present() []*apiv1.StoredManager {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.SortedFunc(maps.Values(v.managers), func(a, b *apiv1.StoredManager) int { return cmp.Compare(a.GetName(), b.GetName()) })
}

// askMember queries a member for its own entry, on behalf of the caller.
func (m *Manager) askMember(ctx context.Context, member *apiv1.Member) (*apiv1.Member, error) {
	if member.GetName() == m.o.Name {
		return m.self(), nil
	}
	if member.GetAddress() == "" {
		return nil, errAway
	}
	who, err := identityOf(ctx).header()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	c := shuntv1connect.NewManagerClient(&http.Client{Transport: m.transport}, "https://"+member.GetAddress())
	req := connect.NewRequest(&apiv1.MembersRequest{})
	req.Header().Set(headerCaller, who)
	res, err := c.Members(ctx, req)
	if err != nil {
		return nil, err
	}
	if got := res.Msg.GetMembers(); len(got) == 1 && got[0].GetName() == member.GetName() {
		return got[0], nil
	}
	return nil, fmt.Errorf("another manager answers at %s", member.GetAddress())
}

// RemoveMember implements the API.
func (a api) RemoveMember(ctx context.Context, req *connect.Request[apiv1.RemoveMemberRequest]) (*connect.Response[apiv1.RemoveMemberResponse], error) {
	m, name := a.m, req.Msg.GetName()
	if name == "" {
		return nil, fault(invalid{[]lb.Violation{{Field: "name", Value: name, Allowed: "must be that of a manager"}}})
	}
	if m.o.Cluster == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("managers/%s: managers are no members of an outside store: stop it instead", name))
	}
	cluster, err := m.clusterMembers(ctx)
	if err != nil {
		return nil, fault(err)
	}
	c, ok := cluster[name]
	if !ok {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("managers/%s: %w", name, store.ErrNoMember))
	}
	// This precedes the removal, because the member may be this one. If the removal fails, only a
	// token is lost.
	if err := m.forgetMember(ctx, name); err != nil {
		return nil, fault(err)
	}
	self := name == m.o.Name
	if self {
		if err := m.setManagerRevocation(ctx, name, true); err != nil {
			return nil, fault(err)
		}
	}
	err = m.o.Cluster.Remove(ctx, c.Name)
	if self && err != nil {
		err = errors.Join(err, m.setManagerRevocation(ctx, name, false))
	}
	if !self && err == nil {
		// Its registration would remain until its lease expires, and a removed member is not down.
		err = m.setManagerRevocation(ctx, name, true, store.Delete(dirManagers+name))
	}
	switch {
	case errors.Is(err, store.ErrNoMember):
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("managers/%s: %w", name, err))
	case errors.Is(err, store.ErrNoMajority), errors.Is(err, store.ErrMember):
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("managers/%s: %w", name, err))
	case err != nil:
		return nil, fault(err)
	}
	m.o.Log.Info("manager was removed", "manager", name, "by", identityOf(ctx).who())
	m.audited(m.auditEntry(ctx, "managers/"+name+" removed"))
	m.managerEvent(name, reasonMemberLeft, "was removed by %s", identityOf(ctx).who())
	return connect.NewResponse(&apiv1.RemoveMemberResponse{}), nil
}

// forgetMember deletes the tokens with which a manager could join again.
func (m *Manager) forgetMember(ctx context.Context, name string) error {
	t, err := m.lead(ctx)
	if err != nil {
		return err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	var txn store.Txn
	for _, id := range m.view.tokensFor(name, pki.RoleManager) {
		txn.Ops = append(txn.Ops, store.Delete(dirTokens+id))
	}
	if len(txn.Ops) == 0 {
		return nil
	}
	res, err := t.commit(ctx, txn)
	if err != nil {
		return err
	}
	return t.wait(ctx, res.Revision)
}

// tokensFor returns the ids of the join tokens of a name and role, sorted.
func (v *view) tokensFor(name, role string) []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var out []string
	for id, t := range v.tokens {
		if t.GetNode() == name && t.GetRole() == role {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}
