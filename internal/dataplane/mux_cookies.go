package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
)

// MuxCookie is what cookies of an endpoint are read with (protocol section 1.6).
type MuxCookie struct {
	// Keys are the SipHash keys by the key id of cookies; Live says which of them count, at least one.
	Keys [2][16]byte
	Live [2]bool
	// Shuffled says under which of them member ids are shuffled (cookie.SecretOf).
	Shuffled [2]bool
	Form     CookieForm
	// Mint is the id of the key that cookies are made with: of forms that the mux itself stamps.
	Mint uint8
}

// CookieForm is where a timestamp has its cookie.
type CookieForm uint8

// CookieEVC is stamped by hosts (protocol section 1.3). CookieCO is in the server's own clock (section 1.4): ids are at most cookie.MaxShortID. CookieSplitR
// and CookieSplitZ are stamped by the mux (section 1.4), which gives servers the echo of their own timestamps back, or none; ids as with CookieCO.
const (
	CookieEVC CookieForm = iota
	CookieCO
	CookieSplitR
	CookieSplitZ
)

// Split says whether the mux stamps packets of the form on their way from the server.
func (f CookieForm) Split() bool { return f == CookieSplitR || f == CookieSplitZ }

// maxID is the largest member id that a cookie of the form names.
func (f CookieForm) maxID() uint16 {
	if f != CookieEVC {
		return cookie.MaxShortID
	}
	return cookie.MaxID
}

// checkCookie refuses endpoints whose cookies could not be read, or would lead nowhere.
func checkCookie(e MuxEndpoint) error {
	switch {
	case e.Cookie == nil && (e.Affinity != AffinityCookie || e.QUIC != nil):
		return nil
	case e.Cookie == nil || e.Cookie.Live == [2]bool{}:
		return errors.New("affinity cookie: no key that counts")
	case e.Cookie.Form > CookieSplitZ || e.Cookie.Mint > 1:
		return fmt.Errorf("cookie keys: form %d, made with key %d: there is none", e.Cookie.Form, e.Cookie.Mint)
	case e.Affinity != AffinityCookie:
		return errors.New("cookie keys: must have affinity cookie")
	case e.Key.Protocol != lb.TCP:
		return fmt.Errorf("cookie keys: with protocol %s: must be tcp", e.Key.Protocol)
	case e.Fragments3Tuple || e.sourceBits() != 0:
		return errors.New("cookie keys: not with fragments by three values, or source affinity")
	}
	for _, m := range e.Members {
		if most := e.Cookie.Form.maxID(); m.ID > most {
			return fmt.Errorf("affinity cookie: member %d: ids must be at most %d", m.ID, most)
		}
	}
	return nil
}

// record is what the tables hold of the keys: those that do not count are zero.
func (k MuxCookie) record() (r muxCookieSet) {
	r.Form = uint64(k.Form)
	if k.Form.Split() {
		r.Mint = uint64(k.Mint)
	}
	for kid, key := range k.Keys {
		if !k.Live[kid] {
			continue
		}
		r.Keys[kid].K0 = binary.LittleEndian.Uint64(key[:8])
		r.Keys[kid].K1 = binary.LittleEndian.Uint64(key[8:])
		r.Live |= 1 << kid
		if k.Shuffled[kid] {
			r.Live |= 1 << (kid + int(muxCookieLiveCOOKIE_SHUFFLED_SHIFT))
		}
	}
	return r
}

// secret is what member ids are shuffled with under the key of an id.
func (k MuxCookie) secret(kid uint8) cookie.Secret {
	if !k.Shuffled[kid] {
		return cookie.InOrder
	}
	return cookie.SecretOf(k.Keys[kid])
}

// cookieOf is what a record was made of.
func cookieOf(r *muxCookieSet) (k MuxCookie) {
	k.Form, k.Mint = CookieForm(r.Form), uint8(r.Mint)
	for kid := range k.Keys {
		k.Keys[kid], k.Live[kid] = cookieKey(r, uint8(kid))
		k.Shuffled[kid] = r.Live>>(kid+int(muxCookieLiveCOOKIE_SHUFFLED_SHIFT))&1 != 0
	}
	return k
}

// cookieKey is the key of a record that cookies with a key id are read with.
func cookieKey(r *muxCookieSet, kid uint8) (key [16]byte, live bool) {
	binary.LittleEndian.PutUint64(key[:8], r.Keys[kid].K0)
	binary.LittleEndian.PutUint64(key[8:], r.Keys[kid].K1)
	return key, r.Live>>kid&1 != 0
}

// cookieTable keeps the cookie_sets: one for all endpoints with equal keys.
type cookieTable struct {
	records  []muxCookieSet
	indices  *pool
	byRecord map[muxCookieSet]*cookieRef
	byIndex  map[uint32]*cookieRef
}

// cookieRef is a set in the tables.
type cookieRef struct {
	record muxCookieSet
	index  uint32
	refs   int
}

func newCookieTable(mem *muxMemory) cookieTable {
	return cookieTable{
		records: mem.cookieSets, indices: newPool(uint32(len(mem.cookieSets))),
		byRecord: make(map[muxCookieSet]*cookieRef), byIndex: make(map[uint32]*cookieRef),
	}
}

// acquire finds or writes a set and takes a reference. No reader sees a new one before its index is published.
func (t *cookieTable) acquire(r muxCookieSet) (*cookieRef, error) {
	if ref, ok := t.byRecord[r]; ok {
		ref.refs++
		return ref, nil
	}
	index, ok := t.indices.alloc()
	if !ok {
		return nil, noRoom(TableCookies, "cookie keys: no room: at most %d sets (--max-endpoints)", len(t.records))
	}
	ref := &cookieRef{record: r, index: index, refs: 1}
	t.records[index] = r
	t.byRecord[r], t.byIndex[index] = ref, ref
	return ref, nil
}

// release gives back a reference to a set that no reader can follow any more; nobody shall find the keys of the last one.
func (t *cookieTable) release(ref *cookieRef) {
	if ref.refs--; ref.refs > 0 {
		return
	}
	if t.byRecord[ref.record] == ref {
		delete(t.byRecord, ref.record)
	}
	delete(t.byIndex, ref.index)
	t.records[ref.index] = muxCookieSet{}
	t.indices.free(ref.index)
}

// adopt takes a reference to the set with an index, which the tables name.
func (t *cookieTable) adopt(index uint32) (*cookieRef, error) {
	if ref, ok := t.byIndex[index]; ok {
		ref.refs++
		return ref, nil
	}
	if !t.indices.reserve(index) {
		return nil, fmt.Errorf("cookie keys %d: beyond the table", index)
	}
	ref := &cookieRef{record: t.records[index], index: index, refs: 1}
	if t.byRecord[ref.record] == nil {
		t.byRecord[ref.record] = ref
	}
	t.byIndex[index] = ref
	return ref, nil
}

// adoptCookies learns the set of an endpoint from its policy word.
func (t *muxTables) adoptCookies(e *muxEntry) (err error) {
	if e.flags()&muxEndpointFlagENDPOINT_COOKIE != 0 {
		e.cookies, err = t.cookies.adopt(uint32(e.policy>>muxPolicyShiftPOLICY_COOKIE_SHIFT) - 1)
	}
	return err
}

// stageCookies gives an endpoint another set of keys, or none, when it differs from the present one. Its number, index + 1, is what the policy word names.
func (c *change) stageCookies(e *muxEntry, w MuxEndpoint) (number uint32, err error) {
	t, old := &c.t.cookies, e.cookies
	next := old
	switch {
	case w.Cookie == nil:
		next = nil
	case old == nil || old.record != w.Cookie.record():
		if next, err = t.acquire(w.Cookie.record()); err != nil {
			return 0, err
		}
		c.undos = append(c.undos, func() { t.release(next) })
	}
	if next != old {
		c.members = append(c.members, func() { e.cookies = next })
		if old != nil {
			c.released = append(c.released, func() { t.release(old) })
		}
	}
	if next == nil {
		return 0, nil
	}
	return next.index + 1, nil
}
