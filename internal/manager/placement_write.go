package manager

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// write stores the places that differ from the stored ones, as soon as the pace allows it.
func (p *placement) write(ctx context.Context, now time.Time) error {
	if len(p.todo) == 0 {
		return nil
	}
	urgent := false
	byBucket := map[int][]place.Key{}
	for key := range p.todo {
		stored, decided := p.m.view.place(key)
		next, wanted := p.next(key, stored, decided)
		if wanted == decided && next.Equal(stored) {
			p.follow(key, stored, stored, 0, now)
			delete(p.todo, key)
			continue
		}
		urgent = urgent || decided && len(next.Muxes) > 0 && !slices.ContainsFunc(stored.All(), p.up)
		b := key.Bucket(placeBuckets)
		byBucket[b] = append(byBucket[b], key)
	}
	if len(byBucket) == 0 || !urgent && now.Sub(p.wrote) < placePace {
		return nil
	}
	buckets := slices.Sorted(maps.Keys(byBucket))
	for len(buckets) > 0 {
		done, err := p.writeSome(ctx, buckets, byBucket, now)
		if err != nil {
			return err
		}
		buckets = buckets[done:]
	}
	p.wrote = now
	return nil
}

// up reports whether a mux may be serving.
func (p *placement) up(mux string) bool {
	x, ok := p.muxes[mux]
	return ok && !x.Down
}

// next returns the place to store for a VIP. wanted is false if it is on every mux, or was removed.
func (p *placement) next(key place.Key, stored plan.Place, decided bool) (next plan.Place, wanted bool) {
	if p.vips[key].Replicas == 0 {
		return plan.Place{}, false
	}
	next.Muxes = p.placer.Muxes(key)
	had := stored.All()
	if !decided {
		// Every mux has it.
		had = slices.Sorted(maps.Keys(p.muxes))
	}
	if mv := p.moves[key]; mv != nil && mv.over && slices.Equal(next.Muxes, stored.Muxes) {
		return next, true
	}
	for _, name := range had {
		if _, there := p.muxes[name]; there && !slices.Contains(next.Muxes, name) {
			next.Leaving = append(next.Leaving, name)
		}
	}
	return next, true
}

// storedPlace is a place that was written.
type storedPlace struct {
	key     place.Key
	was, is plan.Place
}

// writeSome stores the places of as many buckets as fit into a transaction and returns their
// number.
func (p *placement) writeSome(ctx context.Context, buckets []int, keys map[int][]place.Key, now time.Time) (done int, err error) {
	t, err := p.m.lead(ctx)
	if err != nil {
		return 0, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	w := newWrite(p.m.view.snapshot())
	var written []storedPlace
	bytes := 0
	for _, b := range buckets {
		bucket := w.base.bucket(b)
		places := maps.Clone(bucket.places)
		if places == nil {
			places = map[place.Key]plan.Place{}
		}
		for _, key := range keys[b] {
			was, decided := places[key]
			next, wanted := p.next(key, was, decided)
			if places[key] = next; !wanted {
				delete(places, key)
			}
			written = append(written, storedPlace{key, was, next})
		}
		size, err := w.putBucket(b, bucket.mod, places)
		if err != nil {
			return 0, err
		}
		done++
		if bytes += size; bytes >= keepBytes {
			break
		}
	}
	res, err := t.commit(ctx, w.fenced())
	if err != nil {
		return 0, err
	}
	if err := t.wait(ctx, res.Revision); err != nil {
		return 0, err
	}
	if !res.Succeeded {
		return 0, errPlacementConflict
	}
	for _, s := range written {
		delete(p.todo, s.key)
		p.follow(s.key, s.was, s.is, res.Revision, now)
		p.tellPlaced(s, res.Revision)
	}
	p.m.o.Log.Debug("placed VIPs", "vips", len(written), "revision", res.Revision)
	return done, nil
}

// putBucket adds a bucket to the transaction and returns its size.
func (w *write) putBucket(number int, mod int64, places map[place.Key]plan.Place) (size int, err error) {
	key := bucketKey(number)
	w.txn.Compares = append(w.txn.Compares, store.Compare{Key: key, ModRevision: mod})
	if len(places) == 0 {
		if mod != 0 {
			w.txn.Ops = append(w.txn.Ops, store.Delete(key))
		}
		return 0, nil
	}
	value, err := proto.Marshal(convert.ToStoredPlacement(places))
	if err != nil {
		return 0, fmt.Errorf("places %s: %w", key, err)
	}
	w.txn.Ops = append(w.txn.Ops, store.Put(key, value))
	return len(value), nil
}

// bucket returns the stored places of one bucket of VIPs.
func (s *snapshot) bucket(number int) placeBucket {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return s.v.vips.buckets[number]
}
