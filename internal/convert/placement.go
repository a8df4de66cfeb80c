package convert

import (
	"maps"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
)

// ToStoredPlacement writes the places of one bucket for the store.
func ToStoredPlacement(places map[place.Key]plan.Place) *apiv1.StoredPlacement {
	out := &apiv1.StoredPlacement{}
	for _, key := range slices.SortedFunc(maps.Keys(places), place.Key.Compare) {
		p := places[key]
		out.Places = append(out.Places, &apiv1.StoredPlace{Vni: key.VNI, Vip: text(key.VIP), Muxes: p.Muxes, Leaving: p.Leaving})
	}
	return out
}

// FromStoredPlacement reads the places of one bucket from the store.
func FromStoredPlacement(in *apiv1.StoredPlacement) (map[place.Key]plan.Place, error) {
	r, out := &reader{}, make(map[place.Key]plan.Place, len(in.GetPlaces()))
	for _, p := range in.GetPlaces() {
		out[place.Key{VNI: p.GetVni(), VIP: r.addr("vip", p.GetVip())}] = plan.Place{Muxes: p.GetMuxes(), Leaving: p.GetLeaving()}
	}
	return out, r.err()
}
