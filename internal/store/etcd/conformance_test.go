package etcd

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/store/storetest"
)

func TestEtcd(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) store.Store {
		s, err := Open(t.Context(), Options{Dir: t.TempDir(), UnsafeNoFsync: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

// TestMembers runs the suite through each of three members, two of which follow. Every test has its
// own keys.
func TestMembers(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	opened := 0
	open := func(m *Member) store.Store {
		opened++
		s := newStore(v3client.New(m.etcd.Server), nil)
		s.prefix = fmt.Sprintf("/test%d", opened)
		return s
	}
	for _, m := range g.members {
		t.Run(m.etcd.Config().Name, func(t *testing.T) {
			storetest.Run(t, func(*testing.T) store.Store { return open(m) })
		})
	}
	for i, m := range g.members {
		other := g.members[(i+1)%len(g.members)]
		t.Run(m.etcd.Config().Name+" and "+other.etcd.Config().Name, func(t *testing.T) {
			storetest.RunMembers(t, func(t *testing.T) (store.Store, store.Store) {
				a, b := newStore(v3client.New(m.etcd.Server), nil), newStore(v3client.New(other.etcd.Server), nil)
				opened++
				a.prefix = fmt.Sprintf("/test%d", opened)
				b.prefix = a.prefix
				t.Cleanup(func() { a.Close(); b.Close() })
				return a, b
			})
		})
	}
}
