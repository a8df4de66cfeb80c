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
	mint    map[cookieVIP]uint8 // ids of the keys that stamp, of the last plan
}

// bakedKeySet are a VIP's keys as the plan has them.
type bakedKeySet struct {
	keys [2][2]uint64
	use  uint32 // enum host_cookie_use
	mint uint8  // id of the key that stamps
}

// readCookies returns the table that the cells hold. Of two cells of one VIP the agent before was about to clear the one without live keys,
// which no binding names.
func readCookies(cells []hostHostCookieKeys) hostCookieTable {
	t := hostCookieTable{cells: cells, numbers: map[cookieVIP]uint32{}}
	for n := uint32(len(cells)); n > 0; {
		n--
		unused := n
		if cells[n].Vip != ([16]byte{}) {
			of := cookieVIP{cells[n].Vni, cells[n].Vip}
			other, twice := t.numbers[of]
			if !twice {
				t.numbers[of] = n
				continue
			}
			if atomic.LoadUint32(&cells[n].Use) != 0 {
				t.numbers[of], unused = n, other
			}
			cells[unused] = hostHostCookieKeys{}
		}
		t.free = append(t.free, unused)
	}
	return t
}

// addCookies takes in the keys of VIPs.
func (t *hostTables) addCookies(all []plan.CookieKeys) error {
	if len(all) > hostMaxCookies {
		return noRoom(TableCookieKeys, "keys of %d VIPs with cookies: at most %d fit", len(all), hostMaxCookies)
	}
	for _, k := range all {
		of := cookieVIP{k.VNI, k.VIP.As16()}
		if _, twice := t.cookies[of]; twice {
			return fmt.Errorf("keys of cookies of %s: there twice", k.VIP)
		}
		var w bakedKeySet
		stamps := false
		for i := range k.Keys {
			key := &k.Keys[i]
			live := cookieLive(int(key.ID()))
			if w.use&live != 0 {
				return fmt.Errorf("keys of cookies of %s: epochs %d and %d have one id", k.VIP, k.Keys[0].Epoch, key.Epoch)
			}
			sip := ring.KeyOf(key.Key)
			w.keys[key.ID()] = [2]uint64{sip.K0, sip.K1}
			w.use |= live
			if key.Shuffled {
				w.use |= cookieShuffled(int(key.ID()))
			}
			if key.Epoch == k.Mint {
				w.mint, stamps = key.ID(), true
			}
		}
		if !stamps {
			return fmt.Errorf("keys of cookies of %s: none of epoch %d, which is to be stamped with", k.VIP, k.Mint)
		}
		t.cookies[of] = w
	}
	return nil
}

// cookieLive says that the key of an id is live.
func cookieLive(id int) uint32 { return uint32(hostHostCookieUseHOST_COOKIE_LIVE0) << id }

// cookieShuffled says that member ids are shuffled under the key of an id.
func cookieShuffled(id int) uint32 { return uint32(hostHostCookieUseHOST_COOKIE_SHUFFLED0) << id }

// follow makes the cells of the wanted VIPs as wanted. A key that is live is never written: it is made dead first, and a grace period passes; until the new
// one is live, stamps are not made with it, though bindings name it.
func (t *hostCookieTable) follow(want map[cookieVIP]bakedKeySet, d *deferredFree) error {
	waits := false
	for of, w := range want {
		n, known := t.numbers[of]
		if !known {
			if len(t.free) == 0 {
				if err := d.flushLocked(); err != nil {
					return err
				}
			}
			if len(t.free) == 0 {
				return noRoom(TableCookieKeys, "no room for the keys of another VIP's cookies: %d are in use", len(t.numbers))
			}
			n = t.free[len(t.free)-1]
			t.free = t.free[:len(t.free)-1]
			t.numbers[of] = n
			t.cells[n] = hostHostCookieKeys{Vip: of.vip, Vni: of.vni}
		}
		cell := &t.cells[n]
		keep := cell.Use
		for id := range w.keys {
			if cell.Use&w.use&cookieLive(id) != 0 && cell.Keys[id] != w.keys[id] {
				keep &^= cookieLive(id)
			}
		}
		if keep != cell.Use {
			atomic.StoreUint32(&cell.Use, keep)
			waits = true
		}
	}
	if waits {
		if err := d.wait(); err != nil {
			return err
		}
	}
	t.mint = make(map[cookieVIP]uint8, len(want))
	for of, w := range want {
		cell := &t.cells[t.numbers[of]]
		for id := range w.keys {
			if w.use&cookieLive(id) != 0 && cell.Keys[id] != w.keys[id] {
				cell.Keys[id] = w.keys[id]
			}
		}
		if cell.Use != w.use {
			atomic.StoreUint32(&cell.Use, w.use)
		}
		t.mint[of] = w.mint
	}
	return nil
}

// release removes VIPs that are not wanted any more. bindings are those of all indices: those that name such a VIP name none from now on.
// The cell is free once no program reads it.
func (t *hostCookieTable) release(want map[cookieVIP]bakedKeySet, bindings []hostBindingFlow, d *deferredFree) {
	gone := map[uint32]bool{}
	for of, n := range t.numbers {
		if _, wanted := want[of]; !wanted {
			gone[n] = true
			delete(t.numbers, of)
		}
	}
	if len(gone) == 0 {
		return
	}
	for i := range bindings {
		if c := bindings[i].Cookie; c != 0 && gone[keysNumber(c)] {
			atomic.StoreUint32(&bindings[i].Cookie, 0)
		}
	}
	for n := range gone {
		atomic.StoreUint32(&t.cells[n].Use, 0)
	}
	d.deferLocked(func() {
		for n := range gone {
			t.cells[n] = hostHostCookieKeys{}
			t.free = append(t.free, n)
		}
	})
}

// keysNumber is the number of the keys that bindings name (enum binding_cookie).
func keysNumber(word uint32) uint32 {
	return word>>hostBindingCookieBINDING_COOKIE_MEMBER_BITS&(1<<hostBindingCookieBINDING_COOKIE_KEYS_BITS-1) - 1
}

// of is what a binding's flows have of cookies (enum binding_cookie): nothing as long as there are no keys. Where the server owns the VIP its clock carries
// them, and only repair reads them.
func (t *hostCookieTable) of(b *plan.Binding) uint32 {
	of := cookieVIP{b.Key.VNI, b.Key.VIP.As16()}
	n, ok := t.numbers[of]
	if !b.Cookie || !ok {
		return 0
	}
	const low = uint32(hostBindingCookieBINDING_COOKIE_MEMBER_BITS)
	return uint32(t.mint[of])<<hostBindingCookieBINDING_COOKIE_MINT_SHIFT | uint32(b.Member)>>low<<hostBindingCookieBINDING_COOKIE_UPPER_SHIFT | (n+1)<<low |
		uint32(b.Member)&(1<<low-1)
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
