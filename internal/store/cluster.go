package store

import (
	"context"
	"errors"
	"fmt"
)

// Errors of Cluster that callers may test for.
var (
	// ErrNoMember: no member has the name.
	ErrNoMember = errors.New("no such member")
	// ErrMember: the change does not fit the members that there are; it names them.
	ErrMember = errors.New("members of the store")
	// ErrJoining: another member is joining, and one joins at a time. It is an ErrMember.
	ErrJoining = fmt.Errorf("%w: one joins at a time", ErrMember)
	// ErrNoMajority: the change is refused because too few of the other members answer.
	ErrNoMajority = errors.New("too few members of the store answer")
	// ErrRemoved: this member was removed from the cluster. It has to join afresh, with an empty directory.
	ErrRemoved = errors.New("this member was removed from the cluster: empty its data directory and join again")
	// ErrNoSpace: the store refuses writes until there is space again; reading goes on.
	ErrNoSpace = errors.New("store has no space")
)

// ClusterMember is one member of the store.
type ClusterMember struct {
	Name string
	// Peer is where the other members reach it, host:port; empty when it listens nowhere.
	Peer string
	// Learner: it has no vote yet, because it is still catching up.
	Learner bool
	// Started: it has been up as a member. One that was added and never came cannot hold up the others.
	Started bool
}

// Cluster is a store that consists of members, which the manager adds and removes. A store on an outside etcd is none.
type Cluster interface {
	// Add makes room for a member that is about to start with the peer address; initial is what it needs for that.
	// Adding it again before it started gives the same.
	Add(ctx context.Context, name, peer string) (initial []string, err error)
	// Remove takes a member out; the last one stays. ErrNoMajority: the others would be no majority.
	Remove(ctx context.Context, name string) error
	// Members lists the members as this one knows them, ordered by name; it needs no majority.
	Members(ctx context.Context) ([]ClusterMember, error)
}
