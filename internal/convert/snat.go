package convert

import (
	"fmt"
	"net/netip"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/snat"
)

// FromSNATHolder reads a holder of ranges.
func FromSNATHolder(in *apiv1.SnatHolder) (snat.Holder, error) {
	vip, err := netip.ParseAddr(in.GetVip())
	if err != nil || !vip.Is4() {
		return snat.Holder{}, fmt.Errorf("snat holder: vip: %q: must be an IPv4 address", in.GetVip())
	}
	dip, err := netip.ParseAddr(in.GetDip())
	if err != nil || !dip.Is4() {
		return snat.Holder{}, fmt.Errorf("snat holder: dip: %q: must be an IPv4 address", in.GetDip())
	}
	return snat.Holder{VIP: snat.VIP{VNI: in.GetVni(), Addr: vip}, DIP: dip}, nil
}

// ToSNATHolder writes a holder of ranges.
func ToSNATHolder(h snat.Holder) *apiv1.SnatHolder {
	return &apiv1.SnatHolder{Vni: h.VIP.VNI, Vip: h.VIP.Addr.String(), Dip: h.DIP.String()}
}

// ToSNATHolding writes a holder of ranges for its host, with the time after which unused ones are
// returned.
func ToSNATHolding(h snat.Holder, idle time.Duration) *apiv1.SnatHolder {
	out := ToSNATHolder(h)
	out.Idle = duration(idle)
	return out
}

// FromSNATHolding reads the output of ToSNATHolding. The time is 0 if it is not set.
func FromSNATHolding(in *apiv1.SnatHolder) (h snat.Holder, idle time.Duration, err error) {
	if h, err = FromSNATHolder(in); err != nil {
		return h, 0, err
	}
	if d := in.GetIdle(); d != nil {
		if err := d.CheckValid(); err != nil || d.AsDuration() <= 0 {
			return h, 0, fmt.Errorf("snat holder: idle: %v: must be a time above 0", d)
		}
		idle = d.AsDuration()
	}
	return h, idle, nil
}

// FromSNATRanges reads ranges, without invalid ones.
func FromSNATRanges(in []uint32) []snat.Range {
	out := make([]snat.Range, 0, len(in))
	for _, r := range in {
		if r < snat.Ranges {
			out = append(out, snat.Range(r))
		}
	}
	return out
}

// ToSNATRanges writes ranges.
func ToSNATRanges(in []snat.Range) []uint32 {
	out := make([]uint32, len(in))
	for i, r := range in {
		out[i] = uint32(r)
	}
	return out
}

// ToSNATAnswer writes an answer to a host.
func ToSNATAnswer(a snat.Answer) *apiv1.SnatAnswer {
	h := ToSNATHolder(a.Holder)
	switch a.Kind {
	case snat.Shrink:
		keep := uint32(a.Keep)
		return &apiv1.SnatAnswer{Revoke: &apiv1.SnatRevoke{Holder: h, Keep: &keep}}
	case snat.Reclaim:
		return &apiv1.SnatAnswer{Revoke: &apiv1.SnatRevoke{Holder: h, Reclaim: true}}
	case snat.Taken, snat.Leave:
		return &apiv1.SnatAnswer{Revoke: &apiv1.SnatRevoke{Holder: h, Ranges: ToSNATRanges(a.Ranges), Revision: a.Revision, Leave: a.Kind == snat.Leave}}
	default:
		return &apiv1.SnatAnswer{Grant: &apiv1.SnatGrant{Holder: h, Ranges: ToSNATRanges(a.Ranges), All: a.Kind == snat.All, Revision: a.Revision, Refused: a.Reason.String()}}
	}
}

// FromSNATAnswer reads an answer to a host.
func FromSNATAnswer(in *apiv1.SnatAnswer) (a snat.Answer, err error) {
	if r := in.GetRevoke(); r != nil {
		a = snat.Answer{Kind: snat.Taken, Ranges: FromSNATRanges(r.GetRanges()), Revision: r.GetRevision()}
		switch {
		case r.Keep != nil:
			a.Kind, a.Keep = snat.Shrink, int(min(r.GetKeep(), snat.Ranges))
		case r.GetReclaim():
			a.Kind = snat.Reclaim
		case r.GetLeave():
			a.Kind = snat.Leave
		}
		a.Holder, err = FromSNATHolder(r.GetHolder())
		return a, err
	}
	g := in.GetGrant()
	a = snat.Answer{Kind: snat.Granted, Ranges: FromSNATRanges(g.GetRanges()), Revision: g.GetRevision()}
	switch {
	case g.GetAll():
		a.Kind = snat.All
	case g.GetRefused() != "":
		a.Kind, a.Reason = snat.Refused, snat.ParseReason(g.GetRefused())
	}
	a.Holder, err = FromSNATHolder(g.GetHolder())
	return a, err
}
