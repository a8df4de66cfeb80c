package dataplane

import (
	"fmt"
	"sync/atomic"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// hostMaxCookies is how many VIPs' keys a plan may have: old and new ones are there together.
const hostMaxCookies = int(hostHostCookieLimitLIMIT_HOST_COOKIE_KEYS) / 2

// cookieVIP is what the keys of cookies are of.
type cookieVIP struct {
	vni uint32
	vip [16]byte
}

// hostCookieTable are the keys of the VIPs whose packets carry cookies, as programs read them. A VIP keeps its number while the plan has its keys; bindings name
// them by it.
type hostCookieTable struct {
	cells   []hostHostCookieKeys
	numbers map[cookieVIP]uint32
	free    []uint32
}

// readCookies learns what the cells hold.
func readCookies(cells []hostHostCookieKeys) hostCookieTable {
	t := hostCookieTable{cells: cells, numbers: map[cookieVIP]uint32{}}
	for n := len(cells) - 1; n >= 0; n-- {
		if cells[n].Vip == ([16]byte{}) {
			t.free = append(t.free, uint32(n))
			continue
		}
		t.numbers[cookieVIP{cells[n].Vni, cells[n].Vip}] = uint32(n)
	}
	return t
}

// addCookies takes in the keys of VIPs.
func (t *hostTables) addCookies(all []plan.CookieKeys) error {
	if len(all) > hostMaxCookies {
		return fmt.Errorf("keys of %d VIPs with cookies: at most %d fit", len(all), hostMaxCookies)
	}
	for _, k := range all {
		of := cookieVIP{k.VNI, k.VIP.As16()}
		if _, twice := t.cookies[of]; twice {
			return fmt.Errorf("keys of cookies of %s: there twice", k.VIP)
		}
		var w hostHostCookieKeys
		w.Vip, w.Vni = of.vip, of.vni
		for i := range k.Keys {
			key := &k.Keys[i]
			live := uint32(hostHostCookieUseHOST_COOKIE_LIVE0) << key.ID()
			if w.Use&live != 0 {
				return fmt.Errorf("keys of cookies of %s: epochs %d and %d have one id", k.VIP, k.Keys[0].Epoch, key.Epoch)
			}
			sip := ring.KeyOf(key.Key)
			w.Keys[key.ID()] = [2]uint64{sip.K0, sip.K1}
			w.Use |= live
			if key.Epoch == k.Mint && key.ID() == 1 {
				w.Use |= uint32(hostHostCookieUseHOST_COOKIE_MINT1)
			}
		}
		if !w.minted() {
			return fmt.Errorf("keys of cookies of %s: none of epoch %d, which is to be stamped with", k.VIP, k.Mint)
		}
		t.cookies[of] = w
	}
	return nil
}

// minted tells whether the key that stamps is live.
func (w *hostHostCookieKeys) minted() bool {
	live := hostHostCookieUseHOST_COOKIE_LIVE0
	if w.Use&uint32(hostHostCookieUseHOST_COOKIE_MINT1) != 0 {
		live = hostHostCookieUseHOST_COOKIE_LIVE1
	}
	return w.Use&uint32(live) != 0
}

// follow makes the cells of the wanted VIPs as wanted. A key that is live is never written: it is made dead first, and a grace period passes.
func (t *hostCookieTable) follow(want map[cookieVIP]hostHostCookieKeys, g *grace) error {
	waits := false
	for of, w := range want {
		n, known := t.numbers[of]
		if !known {
			if len(t.free) == 0 {
				return fmt.Errorf("no room for the keys of another VIP's cookies: %d are in use", len(t.numbers))
			}
			n = t.free[len(t.free)-1]
			t.free = t.free[:len(t.free)-1]
			t.numbers[of] = n
			t.cells[n] = hostHostCookieKeys{Vip: of.vip, Vni: of.vni}
		}
		cell := &t.cells[n]
		if keep := cell.kept(&w); keep != cell.Use {
			atomic.StoreUint32(&cell.Use, keep)
			waits = true
		}
	}
	if waits {
		if err := g.wait(); err != nil {
			return err
		}
	}
	for of, w := range want {
		cell := &t.cells[t.numbers[of]]
		for kid := range w.Keys {
			if w.Use&(uint32(hostHostCookieUseHOST_COOKIE_LIVE0)<<kid) != 0 && cell.Keys[kid] != w.Keys[kid] {
				cell.Keys[kid] = w.Keys[kid]
			}
		}
		if cell.Use != w.Use {
			atomic.StoreUint32(&cell.Use, w.Use)
		}
	}
	return nil
}

// kept is the use of the cell without the keys that are to become others: none without the one that stamps.
func (w *hostHostCookieKeys) kept(next *hostHostCookieKeys) uint32 {
	out := *w
	for kid := range w.Keys {
		live := uint32(hostHostCookieUseHOST_COOKIE_LIVE0) << kid
		if w.Use&next.Use&live != 0 && w.Keys[kid] != next.Keys[kid] {
			out.Use &^= live
		}
	}
	if out.Use != w.Use && !out.minted() {
		return 0
	}
	return out.Use
}

// release forgets VIPs that are not wanted any more. bindings are those of all indices: what names such a VIP does not any longer.
func (t *hostCookieTable) release(want map[cookieVIP]hostHostCookieKeys, bindings []hostBindingFlow, g *grace) error {
	gone := map[uint32]cookieVIP{}
	for of, n := range t.numbers {
		if _, wanted := want[of]; !wanted {
			gone[n] = of
		}
	}
	if len(gone) == 0 {
		return nil
	}
	for i := range bindings {
		if c := bindings[i].Cookie; c != 0 {
			if _, leaves := gone[c>>hostBindingCookieBINDING_COOKIE_MEMBER_BITS-1]; leaves {
				atomic.StoreUint32(&bindings[i].Cookie, 0)
			}
		}
	}
	for n := range gone {
		atomic.StoreUint32(&t.cells[n].Use, 0)
	}
	if err := g.wait(); err != nil {
		return err
	}
	for n, of := range gone {
		t.cells[n] = hostHostCookieKeys{}
		delete(t.numbers, of)
		t.free = append(t.free, n)
	}
	return nil
}

// of is what a binding's flows have of cookies (enum binding_cookie): nothing as long as there are no keys.
func (t *hostCookieTable) of(b *plan.Binding) uint32 {
	n, ok := t.numbers[cookieVIP{b.Key.VNI, b.Key.VIP.As16()}]
	if !b.Cookie || !ok {
		return 0
	}
	return (n+1)<<hostBindingCookieBINDING_COOKIE_MEMBER_BITS | uint32(b.Member)
}

// clockOf is a clock as a table that is filled from another one has it: where it stands is known too late, so that it begins anew from what its client
// echoed. What was noted of a SYN-ACK stays.
func clockOf(e hostEvc, generation uint8) hostEvc {
	const kinds = uint32(hostEvcFlagEVC_KIND)
	c := e.Word >> hostEvcFlagEVC_COOKIE_SHIFT
	word := c<<hostEvcFlagEVC_COOKIE_SHIFT | uint32(generation)<<hostEvcFlagEVC_GENERATION_SHIFT
	switch hostEvcFlag(e.Word & kinds) {
	case hostEvcFlagEVC_OPENING:
		return hostEvc{V_sw: e.V_sw, V_last: e.V_last, Word: word | uint32(hostEvcFlagEVC_OPENING)}
	case hostEvcFlagEVC_LOST, hostEvcFlagEVC_LIVE:
		// As far ahead as the client takes it, and a tick less for the sake of cookie 0.
		return hostEvc{V_echo: e.V_echo, V_last: e.V_echo + cookie.HostBits.Half() - 2, Word: word | uint32(hostEvcFlagEVC_LOST)}
	}
	return hostEvc{}
}
