package mux

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// sourceLists caches digests by plan item, so that a list of 100,000 prefixes is hashed once.
type sourceLists map[string]*dataplane.SourceList

// get returns the data plane's form of an item's sources; nil: all sources are allowed.
func (l sourceLists) get(item string, s lb.Sources) *dataplane.SourceList {
	if len(s.Allow)+len(s.Deny) == 0 {
		delete(l, item)
		return nil
	}
	have := l[item]
	if have == nil || !slices.Equal(have.Allow, s.Allow) || !slices.Equal(have.Deny, s.Deny) {
		have = &dataplane.SourceList{Digest: digest(s), Allow: s.Allow, Deny: s.Deny}
		l[item] = have
	}
	return have
}

// prune removes the lists that are not in the plan. Most services have none.
func (l sourceLists) prune(p plan.Plan) {
	if len(l) == 0 {
		return
	}
	in := make(map[string]bool, len(l))
	for _, s := range p.Services {
		if len(s.Sources.Allow)+len(s.Sources.Deny) > 0 {
			in[plan.ServiceItem(s.Name)] = true
		}
	}
	for _, s := range p.Sources {
		in[plan.SourcesItem(s.Policy)] = true
	}
	maps.DeleteFunc(l, func(item string, _ *dataplane.SourceList) bool { return !in[item] })
}

// digest returns the SHA-256 of the two lists. Each is preceded by its length; a prefix has 17
// bytes.
func digest(s lb.Sources) (sum [32]byte) {
	h := sha256.New()
	for _, list := range [][]netip.Prefix{s.Allow, s.Deny} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(list)))
		h.Write(length[:])
		for _, p := range list {
			a := p.Addr().As16()
			bits := p.Bits()
			if p.Addr().Is4() {
				bits += 96
			}
			h.Write(append(a[:], byte(bits)))
		}
	}
	h.Sum(sum[:0])
	return sum
}
