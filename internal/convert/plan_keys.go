package convert

import (
	"fmt"
	"net/netip"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/plan"
)

// CookiesItem writes the keys of a VIP's cookies.
func CookiesItem(k *plan.CookieKeys) *apiv1.PlanItem {
	out := &apiv1.PlanKeys{Vni: k.VNI, Vip: text(k.VIP), Mint: k.Mint}
	for _, e := range k.Keys {
		out.Keys = append(out.Keys, &apiv1.PlanEpochKey{Epoch: e.Epoch, Key: slices.Clone(e.Key[:]), Shuffled: e.Shuffled})
	}
	return &apiv1.PlanItem{Key: plan.CookiesItem(k.VNI, k.VIP), Item: &apiv1.PlanItem_Cookies{Cookies: out}}
}

// CIDsItem writes the keys of a VIP's connection ids.
func CIDsItem(k *plan.CIDKeys) *apiv1.PlanItem {
	out := &apiv1.PlanKeys{Vni: k.VNI, Vip: text(k.VIP), Mint: k.Mint}
	for _, e := range k.Keys {
		out.Keys = append(out.Keys, &apiv1.PlanEpochKey{Epoch: e.Epoch, Key: slices.Clone(e.Key[:])})
	}
	return &apiv1.PlanItem{Key: plan.CIDsItem(k.VNI, k.VIP), Item: &apiv1.PlanItem_Cids{Cids: out}}
}

// FromPlanCookies reads the keys of a VIP's cookies.
func FromPlanCookies(in *apiv1.PlanKeys) (plan.CookieKeys, error) {
	vip, keys, err := planKeys(in, func(a, b plan.CookieKey) bool { return a.ID() == b.ID() }, func(e *apiv1.PlanEpochKey, k [16]byte) plan.CookieKey {
		return plan.CookieKey{Epoch: e.GetEpoch(), Key: k, Shuffled: e.GetShuffled()}
	})
	return plan.CookieKeys{VNI: in.GetVni(), VIP: vip, Keys: keys, Mint: in.GetMint()}, err
}

// FromPlanCIDs reads the keys of a VIP's connection ids.
func FromPlanCIDs(in *apiv1.PlanKeys) (plan.CIDKeys, error) {
	vip, keys, err := planKeys(in, func(a, b plan.CIDKey) bool { return a.ConfigID() == b.ConfigID() }, func(e *apiv1.PlanEpochKey, k [16]byte) plan.CIDKey {
		return plan.CIDKey{Epoch: e.GetEpoch(), Key: k}
	})
	return plan.CIDKeys{VNI: in.GetVni(), VIP: vip, Keys: keys, Mint: in.GetMint()}, err
}

// planKeys reads keys of any purpose; meet reports whether two have the same id in packets.
func planKeys[T any](in *apiv1.PlanKeys, meet func(a, b T) bool, of func(in *apiv1.PlanEpochKey, key [16]byte) T) (vip netip.Addr, out []T, err error) {
	r := &reader{}
	r.upTo("vni", in.GetVni(), 1<<24-1)
	vip = r.addr("vip", in.GetVip())
	minted, last := false, uint32(0)
	for i, k := range in.GetKeys() {
		at := fmt.Sprintf("keys[%d]", i)
		if k.GetEpoch() <= last {
			r.fault(at+".epoch", fmt.Sprint(k.GetEpoch()), fmt.Sprintf("must be above %d", last))
		}
		last = k.GetEpoch()
		minted = minted || last == in.GetMint()
		if len(k.GetKey()) != 16 {
			r.fault(at+".key", fmt.Sprintf("%d bytes", len(k.GetKey())), "must be 16 bytes")
			continue
		}
		out = append(out, of(k, [16]byte(k.GetKey())))
	}
	switch n := len(in.GetKeys()); {
	case n < 1 || n > 2:
		r.fault("keys", fmt.Sprintf("%d keys", n), "must be one or two")
	case !minted:
		r.fault("mint", fmt.Sprint(in.GetMint()), "must be the epoch of a key")
	case len(out) == 2 && meet(out[0], out[1]):
		r.fault("keys", fmt.Sprintf("epochs %d and %d", in.GetKeys()[0].GetEpoch(), last), "must have different names in packets")
	}
	return vip, out, r.err()
}
