package store

import (
	"context"
	"errors"
	"fmt"
)

// Errors of Cluster that callers may check.
var (
	// ErrNoMember: no member has the name.
	ErrNoMember = errors.New("no such member")
	// ErrMember: the change conflicts with the current members, which the error names.
	ErrMember = errors.New("members of the store")
	// ErrJoining: another member is joining, and one joins at a time. It is an ErrMember.
	ErrJoining = fmt.Errorf("%w: one joins at a time", ErrMember)
	// ErrNoMajority: the change is refused because too few of the other members answer.
	ErrNoMajority = errors.New("too few members of the store answer")
	// ErrRemoved: this member was removed from the cluster. It must join again, with an empty
	// directory.
	ErrRemoved = errors.New("this member was removed from the cluster: empty its data directory and join again")
	// ErrNoSpace: the store refuses writes until it has space; reads work.
	ErrNoSpace = errors.New("store has no space")
)

// ClusterMember is one member of the store.
type ClusterMember struct {
	Name string
	// Peer is the address at which the other members reach it, host:port; empty if it does not
	// listen.
	Peer string
	// Learner: it has no vote yet, because it is still catching up.
	Learner bool
	// Started: it has been up as a member. An added member that never started cannot block the
	// others.
	Started bool
}

// Cluster is a store that consists of members, which the manager adds and removes. A store in an
// external etcd does not implement it.
type Cluster interface {
	// Add adds a member that is about to start with the peer address; initial is its configuration.
	// Adding it again before it started returns the same.
	Add(ctx context.Context, name, peer string) (initial []string, err error)
	// Remove removes a member, except the last one. ErrNoMajority: the others would have no
	// majority.
	Remove(ctx context.Context, name string) error
	// Members lists the members in the view of this one, ordered by name; it needs no majority.
	Members(ctx context.Context) ([]ClusterMember, error)
}
