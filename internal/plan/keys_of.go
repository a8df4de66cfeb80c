package plan

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// CIDsOf returns the connection id keys of a key's VIP, or nil if there are none; list is ordered
// by VIP.
func CIDsOf(list []CIDKeys, key lb.EndpointKey) []CIDKey {
	at, found := slices.BinarySearchFunc(list, key, func(k CIDKeys, key lb.EndpointKey) int {
		return CompareCIDs(k, CIDKeys{VNI: key.VNI, VIP: key.VIP})
	})
	if !found {
		return nil
	}
	return list[at].Keys
}

// OtherCIDs returns the VIPs whose live connection id keys differ between two lists ordered by VIP.
// It ignores which of them servers use.
func OtherCIDs(before, after []CIDKeys) (out []netip.Addr) {
	if SameSlice(before, after) {
		return nil
	}
	compare := func(a, b *CIDKeys) int { return CompareCIDs(*a, *b) }
	equal := func(a, b *CIDKeys) bool { return slices.Equal(a.Keys, b.Keys) }
	differ(before, after, compare, equal, func(b, a *CIDKeys) {
		if a == nil {
			a = b
		}
		out = append(out, a.VIP)
	})
	return out
}

// CookiesOf returns the cookie keys of a key's VIP, or zero if there are none; list is ordered by
// VIP.
func CookiesOf(list []CookieKeys, key lb.EndpointKey) CookieKeys {
	at, found := slices.BinarySearchFunc(list, key, func(k CookieKeys, key lb.EndpointKey) int {
		return CompareCookies(k, CookieKeys{VNI: key.VNI, VIP: key.VIP})
	})
	if !found {
		return CookieKeys{}
	}
	return list[at]
}

// OtherCookies returns the VIPs whose live cookie keys differ between two lists ordered by VIP. The
// key that cookies are stamped with counts only for VIPs for which minted returns true: those that
// muxes stamp for.
func OtherCookies(before, after []CookieKeys, minted func(vip netip.Addr) bool) (out []netip.Addr) {
	if SameSlice(before, after) {
		return nil
	}
	compare := func(a, b *CookieKeys) int { return CompareCookies(*a, *b) }
	equal := func(a, b *CookieKeys) bool {
		return slices.Equal(a.Keys, b.Keys) && (a.Mint == b.Mint || !minted(a.VIP))
	}
	differ(before, after, compare, equal, func(b, a *CookieKeys) {
		if a == nil {
			a = b
		}
		out = append(out, a.VIP)
	})
	return out
}
