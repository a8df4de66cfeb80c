package manager

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// placeBuckets is the number of keys over which the places of VIPs are spread, by hash. With
// 100,000 VIPs one key has 400, about 20 KB, and a change of one VIP writes one key.
const placeBuckets = 256

// dirPlacement has StoredPlacement by bucket.
const dirPlacement = root + "placement/"

// bucketKey returns the store's key of a bucket.
func bucketKey(bucket int) string { return fmt.Sprintf("%s%02x", dirPlacement, bucket) }

// placeBucket holds the stored places of some VIPs. It is never modified.
type placeBucket struct {
	mod    int64
	places map[place.Key]plan.Place
}

// vips are the VIPs of a view: the service of each, and the places by bucket.
type vips struct {
	claims  map[place.Key]*lb.Service
	buckets [placeBuckets]placeBucket
}

func newVIPs() vips { return vips{claims: map[place.Key]*lb.Service{}} }

func (v *vips) claim(svc *lb.Service) {
	for _, vip := range svc.VIPs {
		v.claims[plan.VIPKey(vip)] = svc
	}
}

// disclaim removes the service's claims. A VIP that moved to another service within the same
// revision is kept.
func (v *vips) disclaim(svc *lb.Service, touched touched) {
	for _, vip := range svc.VIPs {
		key := plan.VIPKey(vip)
		if v.claims[key] == svc {
			delete(v.claims, key)
		}
		touched.vips[key] = true
	}
}

func (v *view) foldPlacementLocked(ev store.Event, touched touched) error {
	number, err := strconv.ParseUint(strings.TrimPrefix(ev.KV.Key, dirPlacement), 16, 8)
	if err != nil {
		return err
	}
	next := placeBucket{mod: ev.KV.ModRevision}
	if ev.Deleted {
		next.mod = 0
	} else {
		var stored apiv1.StoredPlacement
		if err := proto.Unmarshal(ev.KV.Value, &stored); err != nil {
			return err
		}
		if next.places, err = convert.FromStoredPlacement(&stored); err != nil {
			return err
		}
	}
	for key, old := range v.vips.buckets[number].places {
		if now, ok := next.places[key]; !ok || !now.Equal(old) {
			touched.vips[key] = true
			delete(v.state.Places, key)
		}
	}
	for key, now := range next.places {
		if old, ok := v.state.Places[key]; !ok || !now.Equal(old) {
			touched.vips[key] = true
			v.state.Places[key] = now
		}
	}
	v.vips.buckets[number] = next
	return nil
}

// reach is a set of muxes, by name, or all of them.
type reach struct {
	every bool
	names []string
}

// whereLocked returns the muxes that serve a VIP.
func (v *view) whereLocked(vip place.Key) reach {
	names, placed := v.items.where[vip]
	return reach{every: !placed, names: names}
}

// relocateLocked updates the muxes that serve a VIP. It returns those that do or did, and whether
// the sets differ.
func (v *view) relocateLocked(vip place.Key) (either reach, moved bool) {
	old := v.whereLocked(vip)
	delete(v.items.where, vip)
	for _, name := range old.names {
		if v.items.serves[name]--; v.items.serves[name] == 0 {
			delete(v.items.serves, name)
		}
	}
	if svc := v.vips.claims[vip]; svc != nil {
		if muxes, every := v.state.Where(svc, vip); !every {
			v.items.where[vip] = muxes
			for _, name := range muxes {
				v.items.serves[name]++
			}
		}
	}
	now := v.whereLocked(vip)
	if old.every || now.every {
		return reach{every: true}, old.every != now.every
	}
	return reach{names: slices.Concat(old.names, now.names)}, !slices.Equal(old.names, now.names)
}

// noteMoveLocked records the items that muxes gain or lose with a VIP.
func (v *view) noteMoveLocked(vip place.Key, either reach, c *change) {
	svc := v.vips.claims[vip]
	if svc == nil {
		return
	}
	c.tellService(either, svc.Name, v.items.told[svc.Name].SourcesOf)
	c.tellMuxes(either, plan.CookiesItem(vip.VNI, vip.VIP))
	c.tellMuxes(either, plan.CIDsItem(vip.VNI, vip.VIP))
	plan.EachEndpoint(svc, func(key lb.EndpointKey, _ *lb.Endpoint) {
		if plan.VIPOf(key) == vip {
			c.tellMuxes(either, plan.EndpointItem(key))
		}
	})
}

// tellMuxes records that an item may have changed for muxes.
func (c *change) tellMuxes(to reach, key string) {
	if to.every {
		c.items = append(c.items, key)
		return
	}
	if c.muxItems == nil {
		c.muxItems = map[string][]string{}
	}
	for _, name := range to.names {
		c.muxItems[name] = append(c.muxItems[name], key)
	}
}

// vipsLocked returns the VIPs of a service, or none if there is no such service.
func (v *view) vipsLocked(service string) []netip.Addr {
	if svc := v.state.Services[service]; svc != nil {
		return svc.VIPs
	}
	return nil
}

// servesLocked reports whether a mux serves a VIP.
func (v *view) servesLocked(mux string, vip place.Key) bool {
	muxes, placed := v.items.where[vip]
	return !placed || slices.Contains(muxes, mux)
}

// servesAnyLocked reports whether a mux serves any VIP of a service.
func (v *view) servesAnyLocked(mux, service string) bool {
	return slices.ContainsFunc(v.vipsLocked(service), func(vip netip.Addr) bool { return v.servesLocked(mux, plan.VIPKey(vip)) })
}

// place returns the stored place of a VIP.
func (v *view) place(vip place.Key) (p plan.Place, decided bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	p, decided = v.state.Places[vip]
	return p, decided
}
