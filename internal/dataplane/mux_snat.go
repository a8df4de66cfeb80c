package dataplane

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
)

var (
	_ MuxSNAT    = (*Mux)(nil)
	_ SNATTeller = (*Mux)(nil)
)

// snatTable keeps who has which ports of VIPs (struct snat_block): a block of words and one of member words each. A VIP need not be
// in the tables; when it comes, its slot names its block from the first moment on.
type snatTable struct {
	blocks  []muxSnatBlock
	indices *pool // of blocks: one more than there may be VIPs, so that members can change beside
	byVIP   map[lb.EndpointKey]*snatRef
}

// snatRef is a VIP with SNAT.
type snatRef struct {
	index    uint32 // of its block
	members  block  // of member words
	backends []*backendRef
}

func newSNATTable(mem *muxMemory) snatTable {
	return snatTable{blocks: mem.snatBlocks, indices: newPool(uint32(len(mem.snatBlocks))), byVIP: map[lb.EndpointKey]*snatRef{}}
}

// room is how many VIPs there may be.
func (t *snatTable) room() int { return max(len(t.blocks)-1, 0) }

// snatKey is the key of a VIP's slot.
func snatKey(v snat.VIP) lb.EndpointKey { return lb.EndpointKey{VNI: v.VNI, VIP: v.Addr} }

// keys are what the members' records are made of, the zero key for places of nobody.
func (r *snatRef) keys() []backendKey {
	out := make([]backendKey, len(r.backends))
	for i, b := range r.backends {
		if b != nil {
			out[i] = b.backendKey
		}
	}
	return out
}

// word is the word of a range.
func (b *muxSnatBlock) word(r snat.Range) uint16 {
	return uint16(load(&b.Words[r/slotsPerWord]) >> (r % slotsPerWord * 16))
}

// set changes the word of a range, by one atomic store.
func (b *muxSnatBlock) set(r snat.Range, word uint16) {
	at, shift := &b.Words[r/slotsPerWord], r%slotsPerWord*16
	store(at, load(at)&^(0xffff<<shift)|uint64(word)<<shift)
}

// fill gives all ranges their words: those that stay are not written.
func (b *muxSnatBlock) fill(words *[snat.Ranges]uint16) {
	for i := range b.Words {
		var w uint64
		for j := range slotsPerWord {
			w |= uint64(words[i*slotsPerWord+j]) << (16 * j)
		}
		if load(&b.Words[i]) != w {
			store(&b.Words[i], w)
		}
	}
}

// read is the inverse of fill.
func (b *muxSnatBlock) read(words *[snat.Ranges]uint16) {
	for r := range words {
		words[r] = b.word(snat.Range(r))
	}
}

// snatBackends checks members and words, and says what the members' records are made of.
func snatBackends(vip snat.VIP, members []SNATMember, words *[snat.Ranges]uint16) ([]backendKey, error) {
	switch {
	case vip.VNI != 0:
		return nil, fmt.Errorf("VNI %d: not supported by this version", vip.VNI)
	case !vip.Addr.Is4():
		return nil, fmt.Errorf("VIP %v: must be an IPv4 address", vip.Addr)
	case len(members) == 0:
		return nil, nil
	}
	keys := make([]backendKey, len(members))
	for i, m := range members {
		if m == (SNATMember{}) {
			continue
		}
		keys[i] = backendKey{outer: m.Outer, mtu: m.MTU}
		switch {
		case !m.Outer.IsValid():
			return nil, fmt.Errorf("member %d: has no outer destination", i)
		case m.Encap == lb.EncapGUE:
			keys[i].encap = EncapGUE
		case m.Encap != lb.EncapIPIP:
			return nil, fmt.Errorf("member %d: encapsulation %q: must be %s or %s", i, m.Encap, lb.EncapIPIP, lb.EncapGUE)
		}
	}
	for r, w := range words {
		if int(w) > len(members) {
			return nil, fmt.Errorf("range %s: member %d: must be at most %d", snat.Range(r), w, len(members))
		}
	}
	return keys, nil
}

// SetSNAT implements MuxSNAT. Members that change are written beside the present ones, with all words, and published by one store.
func (m *Mux) SetSNAT(vip snat.VIP, members []SNATMember, words *[snat.Ranges]uint16) error {
	keys, err := snatBackends(vip, members, words)
	if err == nil {
		err = m.setSNAT(snatKey(vip), keys, words)
	}
	if err != nil {
		return fmt.Errorf("set SNAT of %v: %w", vip.Addr, ofVIP(err, snatKey(vip)))
	}
	return nil
}

func (m *Mux) setSNAT(vip lb.EndpointKey, keys []backendKey, words *[snat.Ranges]uint16) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.takeLocked(func(crowded bool) (*change, error) { return m.tables.stageSNAT(vip, keys, words, crowded) })
	if err != nil {
		return err
	}
	c.publish()
	m.leaveLocked(c)
	return nil
}

// ChangeSNAT implements MuxSNAT. It waits for no Apply: a lease is usable only once the mux said that it has it.
func (m *Mux) ChangeSNAT(vip snat.VIP, changes []SNATWord) error {
	t := &m.tables.snat
	ref := t.byVIP[snatKey(vip)]
	if ref == nil {
		return fmt.Errorf("change SNAT of %v: it has none", vip.Addr)
	}
	for _, c := range changes {
		if int(c.Word) > len(ref.backends) {
			return fmt.Errorf("change SNAT of %v: range %s: member %d: must be at most %d", vip.Addr, c.Range, c.Word, len(ref.backends))
		}
	}
	for _, c := range changes {
		t.blocks[ref.index].set(c.Range, c.Word)
	}
	return nil
}

// HeldSNAT implements MuxSNAT.
func (m *Mux) HeldSNAT() []snat.VIP {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]snat.VIP, 0, len(m.tables.snat.byVIP))
	for k := range m.tables.snat.byVIP {
		out = append(out, snat.VIP{VNI: k.VNI, Addr: k.VIP})
	}
	slices.SortFunc(out, snat.VIP.Compare)
	return out
}

// SNATWords implements SNATTeller. As ChangeSNAT it waits for no Apply.
func (m *Mux) SNATWords(vip snat.VIP) (outers []netip.Addr, words *[snat.Ranges]uint16, ok bool) {
	t := &m.tables.snat
	ref := t.byVIP[snatKey(vip)]
	if ref == nil {
		return nil, nil, false
	}
	words = &[snat.Ranges]uint16{}
	for r := range words {
		words[r] = t.blocks[ref.index].word(snat.Range(r))
	}
	for _, b := range ref.backends {
		outer := netip.Addr{}
		if b != nil {
			outer = b.outer
		}
		outers = append(outers, outer)
	}
	return outers, words, true
}

// ServesSNAT implements MuxSNAT. It waits for no Apply either.
func (m *Mux) ServesSNAT() bool { return !m.idle.Load() }
