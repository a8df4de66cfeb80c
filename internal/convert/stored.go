package convert

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// ToStoredEndpoint writes an endpoint's state for the store.
func ToStoredEndpoint(s *plan.EndpointState) *apiv1.StoredEndpoint {
	out := &apiv1.StoredEndpoint{
		Vni: s.Key.VNI, Vip: text(s.Key.VIP), Protocol: s.Key.Protocol.String(), Port: uint32(s.Key.Port), PortEnd: uint32(s.Key.PortEnd),
		Generation: s.Generation, RingCode: uint32(s.RingCode), KeyId: s.KeyID, Members: toStoredMembers(s.Members),
		Cookies: s.Cookies, Young: timestamp(s.Young), CookieForm: s.Form, Fading: timestamp(s.Fading), Quic: toQUIC(s.QUIC),
	}
	for _, q := range s.Quarantine {
		out.Quarantine = append(out.Quarantine, &apiv1.StoredQuarantine{
			Id: uint32(q.ID), Dip: text(q.Backend.DIP), Port: uint32(q.Backend.Port), Until: timestamppb.New(q.Until),
		})
	}
	for _, m := range s.History {
		out.History = append(out.History, &apiv1.StoredMembership{
			Generation: m.Generation, RingCode: uint32(m.RingCode), KeyId: m.KeyID, Members: toStoredMembers(m.Members), Until: timestamp(m.Until),
		})
	}
	return out
}

func toStoredMembers(in []plan.MemberState) []*apiv1.StoredMember {
	var out []*apiv1.StoredMember
	for _, m := range in {
		out = append(out, &apiv1.StoredMember{
			Id: uint32(m.ID), Dip: text(m.Backend.DIP), Port: uint32(m.Backend.Port), Weight: uint32(m.Weight), Backup: m.Backup,
			Down: m.Down, Warming: timestamp(m.Warming), Draining: timestamp(m.Draining), Host: text(m.Host),
			Fallen: m.Fallen, Revived: timestamp(m.Revived),
		})
	}
	return out
}

// FromStoredEndpoint reads an endpoint's state from the store.
func FromStoredEndpoint(in *apiv1.StoredEndpoint) (plan.EndpointState, error) {
	r := &reader{}
	s := plan.EndpointState{Key: r.key(in.GetVni(), in.GetVip(), in.GetProtocol(), in.GetPort(), in.GetPortEnd())}
	s.Membership = plan.Membership{
		Generation: in.GetGeneration(), RingCode: uint8(r.upTo("ring_code", in.GetRingCode(), 32)), KeyID: in.GetKeyId(),
		Members: r.storedMembers(in.GetMembers()),
	}
	s.Cookies, s.Young = in.GetCookies(), moment(in.GetYoung())
	s.Form, s.Fading, s.QUIC = in.GetCookieForm(), moment(in.GetFading()), r.quic("quic", in.GetQuic())
	for _, q := range in.GetQuarantine() {
		s.Quarantine = append(s.Quarantine, plan.Quarantined{
			ID: r.word("quarantine.id", q.GetId()), Backend: r.backendKey(q.GetDip(), q.GetPort()), Until: q.GetUntil().AsTime(),
		})
	}
	for _, m := range in.GetHistory() {
		s.History = append(s.History, plan.Membership{
			Generation: m.GetGeneration(), RingCode: uint8(r.upTo("history.ring_code", m.GetRingCode(), 32)), KeyID: m.GetKeyId(),
			Members: r.storedMembers(m.GetMembers()), Until: moment(m.GetUntil()),
		})
	}
	return s, r.err()
}

func (r *reader) storedMembers(in []*apiv1.StoredMember) []plan.MemberState {
	var out []plan.MemberState
	for _, m := range in {
		out = append(out, plan.MemberState{
			ID: r.word("members.id", m.GetId()), Backend: r.backendKey(m.GetDip(), m.GetPort()), Weight: r.word("members.weight", m.GetWeight()),
			Backup: m.GetBackup(), Down: m.GetDown(), Warming: moment(m.GetWarming()), Draining: moment(m.GetDraining()),
			Host: r.optional("members.host", m.GetHost()), Fallen: m.GetFallen(), Revived: moment(m.GetRevived()),
		})
	}
	return out
}

func (r *reader) backendKey(dip string, port uint32) lb.BackendKey {
	return lb.BackendKey{DIP: r.addr("dip", dip), Port: r.word("port", port)}
}

// timestamp writes a time; the zero time is absent.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// moment reads a time that may be absent.
func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
