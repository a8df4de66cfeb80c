package manager

import (
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
)

// ownerShares is the number of equal shares of a class. The entries of an owner that has more
// bytes than one share are written to pages of their own. Hence a batch makes few more pages than
// that, however many tenants there are. Each page is a key of the store.
const ownerShares = 64

// pageShare is the part of a journal that an entry counts for.
type pageShare struct {
	class pageClass
	// owner is a tenant. It is empty for all other callers, in pageUsual, and for entries of
	// role tenant that a build before this field wrote.
	owner string
}

// pagePart is the part of a page that belongs to one owner.
type pagePart struct {
	owner string
	bytes int64
}

// eventShareOf returns the part of the journal that an event counts for.
func eventShareOf(e *apiv1.Event) pageShare {
	if e.GetTenant() == "" {
		return pageShare{}
	}
	return pageShare{pageTenants, e.GetTenant()}
}

// auditShareOf returns the part of the journal that an entry counts for.
func auditShareOf(e *apiv1.AuditEntry) pageShare {
	switch {
	case e.GetRefused() != "":
		return pageShare{pageRefused, e.GetTenant()}
	case e.GetRole() == pki.RoleTenant:
		return pageShare{pageTenants, e.GetTenant()}
	}
	return pageShare{}
}

// shareOut sets the class and the parts of a page with these entries. The class is that of its
// entries, or pageUsual if they have several. Pages of class pageUsual have no parts.
func shareOut[E proto.Message](p *page, entries []E, share func(E) pageShare) {
	at := map[string]int{}
	for i, e := range entries {
		s := share(e)
		if i > 0 && s.class != p.class || s.class == pageUsual {
			p.class, p.parts = pageUsual, nil
			return
		}
		p.class = s.class
		n, ok := at[s.owner]
		if !ok {
			n = len(p.parts)
			at[s.owner], p.parts = n, append(p.parts, pagePart{owner: s.owner})
		}
		p.parts[n].bytes += int64(proto.Size(e))
	}
}

// byShare groups entries so that each group can be one or more pages of one class. The group of
// pageUsual is first, because ends of eventJournal need a change of the leader before any other
// page of its term. The others are in the order of their first entries. Entries of a group stay in
// their order. An owner has a group of its own if it has more bytes than one of ownerShares of its
// class: held in the journal and in entries together. The other owners of a class share a group.
func byShare[E proto.Message](
	entries []E, share func(E) pageShare, of classBytes, held func(pageShare) int64,
) (out [][]E) {
	bytes := map[pageShare]int64{}
	for _, e := range entries {
		bytes[share(e)] += int64(proto.Size(e))
	}
	apart := make(map[pageShare]bool, len(bytes))
	for s, n := range bytes {
		apart[s] = s.class != pageUsual && held(s)+n > of[s.class]/ownerShares
	}
	type group struct {
		pageShare
		apart bool
	}
	usual, at := []E(nil), map[group]int{}
	for _, e := range entries {
		g := group{pageShare: share(e)}
		if g.class == pageUsual {
			usual = append(usual, e)
			continue
		}
		if g.apart = apart[g.pageShare]; !g.apart {
			g.owner = ""
		}
		n, ok := at[g]
		if !ok {
			n = len(out)
			at[g], out = n, append(out, nil)
		}
		out[n] = append(out[n], e)
	}
	if len(usual) > 0 {
		out = append([][]E{usual}, out...)
	}
	return out
}
