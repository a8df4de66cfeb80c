package etcd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"

	"github.com/shuntlb/shunt/internal/store"
)

// maxMembers limits the members, because more would only make writes slower.
const maxMembers = 5

// Members implements store.Cluster.
func (m *Member) Members(context.Context) ([]store.ClusterMember, error) {
	if err := m.ended(); err != nil {
		return nil, err
	}
	var out []store.ClusterMember
	for _, etcd := range m.etcd.Server.Cluster().Members() {
		out = append(out, memberOf(etcd))
	}
	slices.SortFunc(out, func(a, b store.ClusterMember) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

func memberOf(m *membership.Member) store.ClusterMember {
	out := store.ClusterMember{Name: m.Name, Learner: m.IsLearner, Started: len(m.ClientURLs) > 0}
	for _, u := range m.PeerURLs {
		out.Peer = peerAddr(u)
	}
	return out
}

// Add implements store.Cluster. The new member has no vote until it has caught up and requests one,
// so the others keep their majority whatever happens to it.
func (m *Member) Add(ctx context.Context, name, peer string) ([]string, error) {
	if m.peer == "" && m.ended() == nil {
		return nil, fmt.Errorf("%w: the only one listens nowhere: start it with a peer address first (shunt manager --peer)", store.ErrMember)
	}
	// The list below must include earlier Adds and Removes through other members.
	if _, err := m.Barrier(ctx); err != nil {
		return nil, err
	}
	members := m.etcd.Server.Cluster().Members()
	added, err := room(members, name, peer)
	if err != nil {
		return nil, err
	}
	if !added {
		urls, err := types.NewURLs([]string{peerURL(peer)})
		if err != nil {
			return nil, fmt.Errorf("%w: peer: %q: must be ADDRESS:PORT", store.ErrMember, peer)
		}
		now := time.Now()
		learner := membership.NewMemberAsLearner(name, urls, rand.Text(), &now)
		err = m.reconfigure(ctx, func(ctx context.Context) error {
			members, err = m.etcd.Server.AddMember(ctx, *learner)
			return err
		})
		if err != nil {
			return nil, m.clusterFault("add "+name, err)
		}
	}
	var initial []string
	for _, other := range members {
		initial = append(initial, fmt.Sprintf("%s=%s", cmp.Or(other.Name, other.ID.String()), other.PeerURLs[0]))
	}
	slices.Sort(initial)
	return initial, nil
}

// room reports whether the member was added already, and why it cannot be added.
func room(members []*membership.Member, name, peer string) (added bool, err error) {
	for _, etcd := range members {
		other := memberOf(etcd)
		switch {
		case other.Name == name && other.Peer == peer && !other.Started:
			return true, nil
		case other.Name == name:
			return false, fmt.Errorf("%w: %s is one already, at %s: remove it first", store.ErrMember, name, other.Peer)
		case other.Peer == peer:
			return false, fmt.Errorf("%w: %s has the address %s", store.ErrMember, other.Name, peer)
		case other.Learner:
			return false, fmt.Errorf("%w: %s is joining: wait until it has caught up, or remove it", store.ErrJoining, other.Name)
		}
	}
	if len(members) >= maxMembers {
		return false, fmt.Errorf("%w: there are %d: must be at most %d", store.ErrMember, len(members), maxMembers)
	}
	return false, nil
}

// Remove implements store.Cluster.
func (m *Member) Remove(ctx context.Context, name string) error {
	if _, err := m.Barrier(ctx); err != nil {
		return err
	}
	members := m.etcd.Server.Cluster().Members()
	i := slices.IndexFunc(members, func(o *membership.Member) bool { return o.Name == name })
	if i < 0 {
		return fmt.Errorf("%q: %w", name, store.ErrNoMember)
	}
	if len(members) == 1 {
		return fmt.Errorf("%w: %s is the last one: it must stay", store.ErrNoMajority, name)
	}
	err := m.reconfigure(ctx, func(ctx context.Context) error {
		_, err := m.etcd.Server.RemoveMember(ctx, uint64(members[i].ID))
		return err
	})
	if errors.Is(err, membership.ErrIDRemoved) || errors.Is(err, membership.ErrIDNotFound) {
		return nil
	}
	return m.clusterFault("remove "+name, err)
}

// healthyAfter is how long etcd requires the members to be connected before a change. A change
// waits for a member that was just started.
const healthyAfter = etcdHealthInterval + time.Second

const etcdHealthInterval = 5 * time.Second

// reconfigure retries until the members have been connected long enough.
func (m *Member) reconfigure(ctx context.Context, change func(context.Context) error) error {
	ctx, done, err := m.bound(ctx)
	if err != nil {
		return err
	}
	defer done()
	began := m.now()
	for {
		err := change(ctx)
		if !errors.Is(err, etcderrors.ErrUnhealthy) && !errors.Is(err, etcderrors.ErrNotEnoughStartedMembers) || m.now().Sub(began) > healthyAfter {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func (m *Member) clusterFault(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, etcderrors.ErrUnhealthy), errors.Is(err, etcderrors.ErrNotEnoughStartedMembers):
		return fmt.Errorf("%s: %w: the others would be no majority", op, store.ErrNoMajority)
	case errors.Is(err, membership.ErrTooManyLearners):
		return fmt.Errorf("%s: %w: another one is joining: wait until it has caught up, or remove it", op, store.ErrJoining)
	case errors.Is(err, membership.ErrPeerURLexists):
		return fmt.Errorf("%s: %w: another one has the address", op, store.ErrMember)
	}
	return m.fault(op, err)
}
