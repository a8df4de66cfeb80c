package manager

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// losing is a store that loses requests while it has no leader itself: the response never arrives.
type losing struct {
	*store.Memory
	lost *atomic.Int32 // how many grants are still to be lost
}

// Grant implements store.Store.
func (l losing) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, error) {
	if l.lost.Add(-1) >= 0 {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return l.Memory.Grant(ctx, ttl)
}

// TestLostCampaignIsRepeated checks that a member leads although the store lost a request of its
// first election.
func TestLostCampaignIsRepeated(t *testing.T) {
	s := losing{store.NewMemory(), &atomic.Int32{}}
	dir, err := OpenDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	m, err := Open(t.Context(), Options{Dir: dir, Store: s, Name: "m1", Listen: "127.0.0.1:1", keepNothing: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	before := m.view.leadership()
	s.lost.Store(1)
	if err := s.Lapse(s.LeaseOf(keyLeader)); err != nil {
		t.Fatal(err)
	}
	if err := m.view.until(t.Context(), func() bool { return m.view.leader.mod > before.mod }); err != nil {
		t.Errorf("nobody leads after epoch %d: %v", before.epoch, err)
	}
	if s.lost.Load() >= 0 {
		t.Error("nothing was lost: the test shows nothing")
	}
}
