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
	MTU        uint32 // of the path to Outer; 0: unknown, and not enforced
}

// SNATWord is a change of one range: Word is the index of its member plus 1; 0: the range is nobody's.
type SNATWord struct {
	Range snat.Range
	Word  uint16
}

// MuxSNAT is who has which ports of VIPs in a mux's data plane. SetSNAT and ChangeSNAT are not safe for use beside each other.
type MuxSNAT interface {
	// HeldSNAT are the VIPs with SNAT, at first those that an agent before had set, whose words still count.
	HeldSNAT() []snat.VIP
	// ServesSNAT tells whether packets meet what is set here. While the program works with the tables of an agent before, they do
	// not.
	ServesSNAT() bool
	// SetSNAT gives a VIP its members and words, by port>>3: what was there before is void. No members: it has no SNAT. The VIP
	// need not be one of the mux's; what it is given counts when it comes. On error nothing has changed.
	SetSNAT(vip snat.VIP, members []SNATMember, words *[snat.Ranges]uint16) error
	// ChangeSNAT changes words of a VIP, each by one atomic store. The members stay.
	ChangeSNAT(vip snat.VIP, changes []SNATWord) error
}

// SNATTeller is a MuxSNAT that tells what packets find in it. It may be called whenever MuxSNAT may.
type SNATTeller interface {
	// SNATWords reads a VIP's words, by port>>3, and the outer destination of each member; an address that is not valid is of a place
	// that nobody has. false: the VIP has no SNAT.
	SNATWords(vip snat.VIP) (outers []netip.Addr, words *[snat.Ranges]uint16, ok bool)
}

// SNATUse is when a range was used last.
type SNATUse struct {
	Holder snat.Holder
	Range  snat.Range
	At     time.Time
}

// HostSNAT is the ranges of a host's servers in its data plane. It is safe for concurrent use.
type HostSNAT interface {
	// SetHolders makes these the DIPs whose connections leave with a VIP; packets of one that has no port wait. Until the first call
	// they are those that the pins have.
	SetHolders([]snat.Holder) error
	// SetRanges gives a DIP its ranges: new connections take ports of usable, present ones keep theirs of both. nil and nil: none.
	SetRanges(h snat.Holder, usable, leaving []snat.Range) error
	// Low brings DIPs whose ports get scarce, again and again while they do.
	Low() <-chan snat.Holder
	// Uses tells when ranges were used last; a connection that is there uses its range.
	Uses() ([]SNATUse, error)
	// SetDevice makes packets for which there is no port go to a device, by its index; 0: they are dropped.
	SetDevice(index int)
	// Dealt says that n of the packets of a DIP that went to the device wait no longer; at most MaxSNATWaiting do. Settle asks of each DIP
	// how many wait: others of it were lost on their way. False: some may be on their way. It is not to call this interface.
	Dealt(dip netip.Addr, n int)
	Settle(waiting func(dip netip.Addr) (n int, ok bool))
}
