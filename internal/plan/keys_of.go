package plan

import (
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// CIDsOf are the keys of the connection ids of a key's VIP, nil where there are none; the list is ordered by VIP.
func CIDsOf(list []CIDKeys, key lb.EndpointKey) []CIDKey {
	at, found := slices.BinarySearchFunc(list, key, func(k CIDKeys, key lb.EndpointKey) int {
		return CompareCIDs(k, CIDKeys{VNI: key.VNI, VIP: key.VIP})
	})
	if !found {
		return nil
	}
	return list[at].Keys
}

// OtherCIDs are the VIPs whose live keys of connection ids are not the same in two lists ordered by VIP; which of them servers use is no matter.
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

// CookiesOf are the keys of the cookies of a key's VIP, zero where there are none; the list is ordered by VIP.
func CookiesOf(list []CookieKeys, key lb.EndpointKey) CookieKeys {
	at, found := slices.BinarySearchFunc(list, key, func(k CookieKeys, key lb.EndpointKey) int {
		return CompareCookies(k, CookieKeys{VNI: key.VNI, VIP: key.VIP})
	})
	if !found {
		return CookieKeys{}
	}
	return list[at]
}

// OtherCookies are the VIPs whose live keys of cookies are not the same in two lists ordered by VIP; which of them hosts stamp with is no matter, but
// minted says of which VIPs muxes stamp with it.
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
