package dataplane

import (
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/snat"
)

// SNATMember is how a mux reaches a DIP that has ports of a VIP.
type SNATMember struct {
	DIP, Outer netip.Addr
	Encap      string // lb.EncapIPIP or lb.EncapGUE
}

// SNATWord is a change of one range: Word is the index of its member plus 1; 0: the range is nobody's.
type SNATWord struct {
	Range snat.Range
	Word  uint16
}

// MuxSNAT is who has which ports of VIPs in a mux's data plane. It is not safe for concurrent use.
type MuxSNAT interface {
	// SetSNAT gives a VIP its members and words, by port>>3: what was there before is void. No members: it has no SNAT.
	SetSNAT(vip snat.VIP, members []SNATMember, words *[snat.Ranges]uint16) error
	// ChangeSNAT changes words of a VIP, each by one atomic store. The members stay.
	ChangeSNAT(vip snat.VIP, changes []SNATWord) error
}

// SNATUse is when a range was used last.
type SNATUse struct {
	Holder snat.Holder
	Range  snat.Range
	At     time.Time
}

// HostSNAT is the ranges of a host's servers in its data plane. It is safe for concurrent use.
type HostSNAT interface {
	// SetRanges gives a DIP its ranges: new connections take ports of usable, present ones keep theirs of both. nil and nil: none.
	SetRanges(h snat.Holder, usable, leaving []snat.Range) error
	// Low brings DIPs whose ports get scarce, again and again while they do.
	Low() <-chan snat.Holder
	// Uses tells when ranges were used last; a connection that is there uses its range.
	Uses() ([]SNATUse, error)
}
