package manager_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/store/etcd"
	"github.com/shuntlb/shunt/internal/token"
)

// etcdRig is a manager with an embedded member of the store.
type etcdRig struct {
	*rig
	member *etcd.Member
}

// newEtcdRig starts a manager. join returns the result of its admission; nil for the first manager.
func newEtcdRig(t *testing.T, name, path, peer string, join func(o manager.Options) *manager.Joined) *etcdRig {
	t.Helper()
	r := &etcdRig{rig: &rig{t: t, name: name, path: path, peer: peer}}
	l, err := net.Listen("tcp", loopback())
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	l.Close()
	dir, err := manager.OpenDataDir(path)
	if err != nil {
		t.Fatal(err)
	}
	o := manager.Options{Dir: dir, Name: name, Listen: r.addr, Peer: peer, Log: logger(t)}
	var joined manager.Joined
	if join != nil {
		joined = *join(o)
	} else if err := manager.Certify(o); err != nil {
		t.Fatal(err)
	}
	cert, key, ca := dir.PeerFiles()
	r.member, err = etcd.Open(t.Context(), etcd.Options{
		Dir: dir.Etcd(), Name: name, Peer: peer, Cluster: joined.Cluster, TLS: etcd.TLS{Cert: cert, Key: key, CA: ca}, UnsafeNoFsync: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	dir.Close()
	r.store, r.cluster = r.member, r.member
	r.start()
	t.Cleanup(func() {
		r.stop()
		r.member.Close()
	})
	return r
}

func freePeer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", loopback())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// joining returns a function that joins a manager at a member with a token of that member.
func joining(t *testing.T, at *rig, name string) func(manager.Options) *manager.Joined {
	return func(o manager.Options) *manager.Joined {
		t.Helper()
		tok, err := token.Parse(at.token(name, "manager"))
		if err != nil {
			t.Fatal(err)
		}
		// No manager listens at the first address.
		joined, err := manager.Join(t.Context(), o, tok, freePeer(t), at.addr)
		if err != nil {
			t.Fatal(err)
		}
		return joined
	}
}

// TestManagersJoin makes one manager three, each joining at another member, stops the leader and
// its store, and removes it. Nothing that was acknowledged is lost.
func TestManagersJoin(t *testing.T) {
	rigs := []*etcdRig{newEtcdRig(t, "m1", t.TempDir(), freePeer(t), nil)}
	rigs[0].apply(network())
	for i := 2; i <= 3; i++ {
		name := fmt.Sprintf("m%d", i)
		r := newEtcdRig(t, name, t.TempDir(), freePeer(t), joining(t, rigs[i-2].rig, name))
		r.apply(hostNode(i))
		rigs = append(rigs, r)
	}
	for _, r := range rigs {
		res, err := r.admin.Members(t.Context(), connect.NewRequest(&apiv1.MembersRequest{}))
		if err != nil || len(res.Msg.Members) != 3 || res.Msg.Outside {
			t.Fatalf("members by %s: %v %v", r.name, res, err)
		}
		for i, m := range res.Msg.Members {
			if m.Name != rigs[i].name || m.Address != rigs[i].addr || m.Peer != rigs[i].peer || !m.Healthy || m.Leader != (i == 0) || m.Revision == 0 || m.Version != "test" || m.Commit != "0123abcd" {
				t.Errorf("member %d by %s: %v", i, r.name, m)
			}
		}
	}
	if _, err := rigs[1].admin.RemoveMember(t.Context(), connect.NewRequest(&apiv1.RemoveMemberRequest{Name: "m9"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("removing nobody: %v", err)
	}
	rigs[0].stop()
	rigs[0].member.Close()
	rigs[1].apply(hostNode(1))
	rigs[2].admin.Members(t.Context(), connect.NewRequest(&apiv1.MembersRequest{}))
	if _, err := rigs[2].admin.RemoveMember(t.Context(), connect.NewRequest(&apiv1.RemoveMemberRequest{Name: "m1"})); err != nil {
		t.Fatalf("removing the one that is gone: %v", err)
	}
	// A member reports its own view, and may see the removal after the leader.
	for deadline := time.Now().Add(30 * time.Second); ; {
		res, err := rigs[2].admin.Members(t.Context(), connect.NewRequest(&apiv1.MembersRequest{}))
		if err == nil && len(res.Msg.Members) == 2 {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("members afterwards: %v %v", res, err)
		}
		<-time.After(10 * time.Millisecond)
	}
	nodes, err := rigs[2].admin.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Node"}))
	if err != nil || len(nodes.Msg.Objects) != 3 {
		t.Errorf("nodes afterwards: %v %v", nodes, err)
	}
}

// TestRemovedMemberIsListedNoMore: a member that ran when it was removed cannot restore its
// registration, which would list it as down until its lease expires.
func TestRemovedMemberIsListedNoMore(t *testing.T) {
	rigs := []*etcdRig{newEtcdRig(t, "m1", t.TempDir(), freePeer(t), nil)}
	for i := 2; i <= 3; i++ {
		name := fmt.Sprintf("m%d", i)
		rigs = append(rigs, newEtcdRig(t, name, t.TempDir(), freePeer(t), joining(t, rigs[0].rig, name)))
	}
	if _, err := rigs[0].admin.RemoveMember(t.Context(), connect.NewRequest(&apiv1.RemoveMemberRequest{Name: "m3"})); err != nil {
		t.Fatal(err)
	}
	res, err := rigs[0].admin.Members(t.Context(), connect.NewRequest(&apiv1.MembersRequest{}))
	if err != nil || len(res.Msg.Members) != 2 {
		t.Errorf("members after the removal of one: %v %v", res, err)
	}
}

// TestManagerThatMayNotJoinSaysWhy, and leaves the directory unchanged.
func TestManagerThatMayNotJoinSaysWhy(t *testing.T) {
	r := newRig(t, store.NewMemory())
	other := newRig(t, store.NewMemory())
	parse := func(s string) token.Token {
		tok, err := token.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	for name, c := range map[string]struct {
		token string
		name  string
		want  string
	}{
		"a node's token":         {r.token("m2", "mux"), "m2", "unknown, expired, used or for another node"},
		"another manager's":      {r.token("m3", "manager"), "m2", "unknown, expired, used or for another node"},
		"another cluster's":      {other.token("m2", "manager"), "m2", "CA is not the one that the token names"},
		"a name that is no name": {r.token("m2", "manager"), "M_2", "must be a DNS label"},
	} {
		dir, err := manager.OpenDataDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		_, err = manager.Join(t.Context(), manager.Options{Dir: dir, Name: c.name, Listen: "127.0.0.1:1", Peer: "127.0.0.1:2"}, parse(c.token), r.addr)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		cert, _, ca := dir.PeerFiles()
		for _, file := range []string{cert, ca, filepath.Join(filepath.Dir(ca), "store.key")} {
			if _, err := os.Stat(file); err == nil {
				t.Errorf("%s: %s was written", name, file)
			}
		}
		dir.Close()
	}
	dir, err := manager.OpenDataDir(other.path + "-more")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	copySecrets(t, other.path, other.path+"-more")
	_, err = manager.Join(t.Context(), manager.Options{Dir: dir, Name: "m2", Listen: "127.0.0.1:1"}, parse(r.token("m2", "manager")), r.addr)
	if err == nil || !strings.Contains(err.Error(), "of another cluster than the token") {
		t.Errorf("a directory of another cluster: %v", err)
	}
}

// TestAdmissionIsForTokensOfManagers: no other certificate and no other token is admitted, at any
// member.
func TestAdmissionIsForTokensOfManagers(t *testing.T) {
	ms := newMembers(t, 2, nil)
	for _, r := range ms.rigs {
		for who, cfg := range map[string][2]string{"an administrator": {"admin", "admin"}, "a manager": {"m2", "manager"}, "a node": {"mux1", "mux"}} {
			err := r.admit(cfg[0], cfg[1], r.token("m2", "mux"))
			if connect.CodeOf(err) != connect.CodePermissionDenied {
				t.Errorf("%s at %s: %v, want permission denied", who, r.name, err)
			}
		}
	}
}

// admit requests admission with a certificate of the name and role.
func (r *rig) admit(name, role, token string) error {
	r.t.Helper()
	c := shuntv1connect.NewMemberProtocolClient(r.httpClient(r.as(r.ca(), name, role)), "https://"+r.addr)
	_, err := c.Admit(r.t.Context(), connect.NewRequest(&apiv1.AdmitRequest{Token: token, Name: "m2", Address: "127.0.0.1:1", Peer: "127.0.0.1:2", Csr: csr(r.t)}))
	return err
}

// TestMembersAreAskedThemselves: a member that stops without notice is listed as down.
func TestMembersAreAskedThemselves(t *testing.T) {
	ms := newMembers(t, 3, func(_ int, s store.Store) store.Store { return &deaf{Store: s} })
	gone := ms.rigs[2]
	gone.store.(*deaf).deaf = true
	gone.stop()
	res, err := ms.rigs[1].admin.Members(t.Context(), connect.NewRequest(&apiv1.MembersRequest{}))
	if err != nil || len(res.Msg.Members) != 3 || !res.Msg.Outside {
		t.Fatalf("members: %v %v", res, err)
	}
	for i, m := range res.Msg.Members {
		if m.Healthy != (i != 2) || (m.Error != "") != (i == 2) {
			t.Errorf("%s is healthy: %v, error %q", m.Name, m.Healthy, m.Error)
		}
	}
}

// busyCluster has another member that joins, for a number of calls.
type busyCluster struct {
	store.Cluster
	busy  atomic.Int32
	asked atomic.Int32
}

func (c *busyCluster) Add(context.Context, string, string) ([]string, error) {
	c.asked.Add(1)
	if c.busy.Add(-1) >= 0 {
		return nil, fmt.Errorf("%w: m3 is joining: wait until it has caught up, or remove it", store.ErrJoining)
	}
	return []string{"m1=https://127.0.0.1:1"}, nil
}

// TestManagerWaitsForOneThatJoins: the second of two that join concurrently retries until the first
// has joined.
func TestManagerWaitsForOneThatJoins(t *testing.T) {
	cluster := &busyCluster{}
	cluster.busy.Store(3)
	r := newRigOf(t, rig{cluster: cluster})
	tok, err := token.Parse(r.token("m2", "manager"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := manager.OpenDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	waits := &instant{}
	o := manager.Options{Dir: dir, Name: "m2", Listen: "127.0.0.1:1", Peer: "127.0.0.1:2", Log: logger(t), Clock: waits}
	joined, err := manager.Join(t.Context(), o, tok, r.addr)
	if err != nil || len(joined.Cluster) != 1 || cluster.asked.Load() != 4 || waits.n.Load() != 3 {
		t.Errorf("after %d questions and %d waits: %v %v", cluster.asked.Load(), waits.n.Load(), joined, err)
	}
}

// instant is a clock whose timers fire immediately and are counted.
type instant struct {
	clock.System
	n atomic.Int32
}

func (c *instant) After(time.Duration) <-chan time.Time {
	c.n.Add(1)
	return c.System.After(0)
}
