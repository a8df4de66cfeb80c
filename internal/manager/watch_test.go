package manager_test

import (
	"context"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/store"
)

// asked is a gated store that signals each completed read index (Barrier).
type asked struct {
	*gated
	barriers chan struct{}
}

func (a asked) Barrier(ctx context.Context) (int64, error) {
	revision, err := a.gated.Barrier(ctx)
	a.barriers <- struct{}{}
	return revision, err
}

// TestWatchBeginsWithWhatWasSeen: a member that is behind does not answer a Watch with an older
// state than one acknowledged elsewhere before it.
func TestWatchBeginsWithWhatWasSeen(t *testing.T) {
	var stores []asked
	ms := newMembers(t, 2, func(_ int, s store.Store) store.Store {
		stores = append(stores, asked{newGated(s), make(chan struct{}, 100)})
		return stores[len(stores)-1]
	})
	leader, follower := ms.leader(1), ms.follower()
	behind := stores[0]
	if follower == ms.rigs[1] {
		behind = stores[1]
	}
	leader.apply(network())
	thaw := behind.freeze()
	revision := leader.apply(hostNode(1)).Revision
	first := make(chan *apiv1.WatchResponse, 1)
	go func() {
		// The call itself waits for the first answer.
		stream, err := follower.admin.Watch(t.Context(), connect.NewRequest(&apiv1.WatchRequest{Kind: "Node"}))
		if err != nil {
			t.Error(err)
			first <- nil
			return
		}
		defer stream.Close()
		stream.Receive()
		first <- stream.Msg()
	}()
	select {
	case res := <-first:
		thaw()
		t.Fatalf("a member that is behind answered %v", res)
	case <-behind.barriers:
	}
	thaw()
	if res := <-first; res.GetRevision() < revision || len(res.GetUpserted()) != 1 {
		t.Errorf("first answer %v, want host1 of revision %d", res, revision)
	}
}

// TestFollowedEventsBegin: a stream of events confirms that it is open although nothing has
// happened.
func TestFollowedEventsBegin(t *testing.T) {
	r := newRig(t, store.NewMemory())
	stream, err := r.admin.Events(t.Context(), connect.NewRequest(&apiv1.EventsRequest{Kind: "Service", Name: "none", Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() || len(stream.Msg().GetEvents()) != 0 {
		t.Errorf("first response %v, %v, want an empty one", stream.Msg(), stream.Err())
	}
}
