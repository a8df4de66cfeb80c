package manager

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// newKey returns a random key.
func newKey() (key [16]byte) {
	rand.Read(key[:])
	return key
}

// rekey adds the first keys of VIPs and services that need some from now on, and deletes those of
// removed VIPs and services. Keys that are no longer needed stay stored with their service, and no
// node has them, so that packets that carry them are not read with other keys of the same epoch.
func (w *write) rekey(now time.Time) error {
	wanted := w.keyOwners()
	for _, id := range slices.SortedFunc(maps.Keys(wanted), compareKeySets) {
		was, is := wanted[id].was, wanted[id].is
		set, mod := w.base.keySet(id)
		needed := is != nil && id.purpose().Needs(is)
		var next plan.KeySet
		switch {
		case mod != 0 && (is == nil || set.Service != is.Name && !needed):
			if err := w.putKeySet(id, mod, nil); err != nil {
				return err
			}
			continue
		case needed && mod == 0:
			next = plan.NewKeySet(is.Name, plan.SetKey{Epoch: 1, Key: newKey(), Made: now, Shuffled: id.shuffles()})
		case needed && set.Service != is.Name:
			next = plan.NewKeySet(is.Name, plan.SetKey{Epoch: set.Keys[len(set.Keys)-1].Epoch + 1, Key: newKey(), Made: now, Shuffled: id.shuffles()})
		case needed && was != nil && !id.purpose().Needs(was):
			next = set.Again(now)
		default:
			continue
		}
		if err := w.putKeySet(id, mod, &next); err != nil {
			return err
		}
	}
	return nil
}

// keyOwner is the service that has the VIP, or that is identified by the key, before the write and
// after it. nil means none.
type keyOwner struct{ was, is *lb.Service }

// keyOwners returns the owners of all keys that the write may touch.
func (w *write) keyOwners() map[keySetID]keyOwner {
	w.base.v.mu.RLock()
	defer w.base.v.mu.RUnlock()
	out := map[keySetID]keyOwner{}
	for r, o := range w.edited {
		if r.kind != lb.KindService {
			continue
		}
		was, is := w.base.v.state.Services[r.name], (*lb.Service)(nil)
		if o != nil {
			is = o.(*lb.Service)
		}
		out[cidsOf(r.name)] = keyOwner{was, is}
		for _, svc := range []*lb.Service{was, is} {
			if svc == nil {
				continue
			}
			for _, vip := range svc.VIPs {
				id := cookiesOf(plan.VIPKey(vip))
				own := keyOwner{was: w.base.v.vips.claims[id.vip], is: out[id].is}
				if svc == is {
					own.is = is // the previous owner may be edited, too
				}
				out[id] = own
			}
		}
	}
	return out
}

// putKeySet adds keys to the transaction; nil deletes them.
func (w *write) putKeySet(id keySetID, mod int64, set *plan.KeySet) error {
	key := id.key()
	w.txn.Compares = append(w.txn.Compares, store.Compare{Key: key, ModRevision: mod})
	if set == nil {
		w.txn.Ops = append(w.txn.Ops, store.Delete(key))
		return nil
	}
	value, err := w.base.v.secrets.sealKeySet(key, set)
	if err != nil {
		return fmt.Errorf("keys %s: %w", key, err)
	}
	w.txn.Ops = append(w.txn.Ops, store.Put(key, value))
	return nil
}

// keySet returns the stored key set and the revision of its key, or 0 if there is none.
func (s *snapshot) keySet(id keySetID) (plan.KeySet, int64) {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return s.v.keySetLocked(id)
}

func compareKeySets(a, b keySetID) int {
	return cmp.Or(cmp.Compare(a.service, b.service), comparePlaces(a.vip, b.vip))
}

func comparePlaces(a, b place.Key) int {
	return cmp.Or(cmp.Compare(a.VNI, b.VNI), a.VIP.Compare(b.VIP))
}
