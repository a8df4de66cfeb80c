package etcd

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/store"
)

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	if err := s.ended(); err != nil {
		return nil, err
	}
	wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(context.WithoutCancel(ctx)))
	ch := s.client.Watch(wctx, s.prefix+prefix, clientv3.WithPrefix(), clientv3.WithRev(from))
	w := &watcher{s: s, ch: ch, cancel: cancel, told: from - 1}
	if s.progress != nil {
		s.progress.add(w)
	}
	return w, nil
}

// watcher splits etcd's responses, which may contain several revisions, into one batch per
// revision. etcd without fragmentation never splits a revision over two responses.
type watcher struct {
	s       *Store
	ch      clientv3.WatchChan
	cancel  context.CancelFunc
	pending []store.Batch
	// told is the revision of the last batch that arrived; progress.mu guards it.
	told int64
}

// Next implements store.Watcher.
func (w *watcher) Next(ctx context.Context) (store.Batch, error) {
	for len(w.pending) == 0 {
		select {
		case res, ok := <-w.ch:
			if !ok {
				if cause := w.s.ended(); cause != nil {
					return store.Batch{}, cause
				}
				return store.Batch{}, store.ErrClosed
			}
			if err := res.Err(); err != nil {
				return store.Batch{}, w.s.fault("watch", err)
			}
			w.pending = w.batches(res)
		case <-w.s.life.Done():
			return store.Batch{}, w.s.ended()
		case <-ctx.Done():
			return store.Batch{}, ctx.Err()
		}
	}
	b := w.pending[0]
	w.pending = w.pending[1:]
	return b, nil
}

func (w *watcher) batches(res clientv3.WatchResponse) []store.Batch {
	var out []store.Batch
	for _, ev := range res.Events {
		rev := ev.Kv.ModRevision
		if len(out) == 0 || out[len(out)-1].Revision != rev {
			out = append(out, store.Batch{Revision: rev})
		}
		last := &out[len(out)-1]
		last.Events = append(last.Events, w.event(ev))
	}
	if w.s.progress == nil {
		return out
	}
	if res.IsProgressNotify() {
		out = append(out, store.Batch{Revision: res.Header.Revision})
	}
	if n := len(out); n > 0 && !w.s.progress.told(w, out[n-1].Revision) {
		return nil
	}
	return out
}

func (w *watcher) event(ev *clientv3.Event) store.Event {
	if ev.Type == mvccpb.Event_DELETE {
		return store.Event{KV: store.KV{Key: strings.TrimPrefix(string(ev.Kv.Key), w.s.prefix), ModRevision: ev.Kv.ModRevision}, Deleted: true}
	}
	return store.Event{KV: w.s.fromKV(ev.Kv)}
}

// Close implements store.Watcher.
func (w *watcher) Close() {
	if w.s.progress != nil {
		w.s.progress.drop(w)
	}
	w.cancel()
}

// progress makes watchers reach the revisions that Barrier returned. In an etcd that others write
// to, such a revision may contain no key under the prefix, so a watcher would not be notified of
// it.
type progress struct {
	mu       sync.Mutex
	watchers map[*watcher]bool
	wanted   int64
	asked    chan struct{}
}

// progressEvery is the interval of progress requests while a watcher is behind, because etcd does
// not answer them while one is.
const progressEvery = 20 * time.Millisecond

func newProgress() *progress {
	return &progress{watchers: map[*watcher]bool{}, asked: make(chan struct{}, 1)}
}

func (p *progress) add(w *watcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchers[w] = true
}

func (p *progress) drop(w *watcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watchers, w)
}

// told records the revision of the watcher; false: it had reached it before.
func (p *progress) told(w *watcher, revision int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if revision <= w.told {
		return false
	}
	w.told = revision
	return true
}

func (p *progress) want(revision int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if revision <= p.wanted {
		return
	}
	p.wanted = revision
	notify.Send(p.asked)
}

func (p *progress) behind() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.watchers {
		if w.told < p.wanted {
			return true
		}
	}
	return false
}

// run requests the progress of watchers that are behind until ctx ends.
func (p *progress) run(ctx context.Context, client *clientv3.Client) {
	for {
		select {
		case <-p.asked:
		case <-ctx.Done():
			return
		}
		for p.behind() && ctx.Err() == nil {
			// The watchers receive and return the same error.
			_ = client.RequestProgress(clientv3.WithRequireLeader(ctx))
			select {
			case <-time.After(progressEvery):
			case <-ctx.Done():
			}
		}
	}
}
