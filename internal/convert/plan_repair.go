package convert

import (
	"fmt"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/plan"
)

// Bits of PlanMembership.flags.
const (
	seatBackup = 1 << iota
	seatDown
)

// RepairItem writes the repair data of an endpoint for its hosts.
func RepairItem(r *plan.Repair) *apiv1.PlanItem {
	out := &apiv1.PlanRepair{
		Vni: r.Key.VNI, Vip: text(r.Key.VIP), Protocol: r.Key.Protocol.String(), Port: uint32(r.Key.Port), PortEnd: uint32(r.Key.PortEnd),
		Key: &apiv1.PlanKey{Id: r.Hash.ID, Key: slices.Clone(r.Hash.Key[:])}, Encap: r.Encap, Source: toSource(r.Source), Fragments: r.Fragments,
		Rotated: r.Rotated,
	}
	for _, t := range r.Targets {
		out.Targets = append(out.Targets, &apiv1.PlanTarget{
			Id: uint32(t.ID), Dip: text(t.DIP), Port: uint32(t.Port), Outer: text(t.Outer), Host: text(t.Host), Fallen: t.Fallen,
		})
	}
	for _, m := range r.Memberships {
		to := &apiv1.PlanMembership{Generation: m.Generation, RingCode: uint32(m.RingCode)}
		for _, s := range m.Seats {
			flags := uint32(0)
			if s.Backup {
				flags |= seatBackup
			}
			if s.Down {
				flags |= seatDown
			}
			to.Ids, to.Weights, to.Flags = append(to.Ids, uint32(s.ID)), append(to.Weights, uint32(s.Weight)), append(to.Flags, flags)
		}
		out.Memberships = append(out.Memberships, to)
	}
	return &apiv1.PlanItem{Key: plan.RepairItem(r.Key), Item: &apiv1.PlanItem_Repair{Repair: out}}
}

// FromPlanRepair reads the repair data of an endpoint. Every member must have a target.
func FromPlanRepair(in *apiv1.PlanRepair) (plan.Repair, error) {
	r := &reader{}
	hash, err := FromPlanKey(in.GetKey())
	if err != nil {
		return plan.Repair{}, err
	}
	out := plan.Repair{
		Key:  r.key(in.GetVni(), in.GetVip(), in.GetProtocol(), in.GetPort(), in.GetPortEnd()),
		Hash: hash, Encap: in.GetEncap(), Source: r.source("source", in.GetSource()), Fragments: in.GetFragments(), Rotated: in.GetRotated(),
	}
	if out.Rotated && len(in.GetMemberships()) != 1 {
		r.fault("memberships", fmt.Sprint(len(in.GetMemberships())), "must be one with rotated")
	}
	known := map[uint16]bool{}
	for i, t := range in.GetTargets() {
		path := fmt.Sprintf("targets[%d]", i)
		to := plan.Target{
			ID: r.word(path+".id", t.GetId()), DIP: r.addr(path+".dip", t.GetDip()), Port: r.word(path+".port", t.GetPort()),
			Outer: r.addr(path+".outer", t.GetOuter()), Host: r.addr(path+".host", t.GetHost()), Fallen: t.GetFallen(),
		}
		if known[to.ID] {
			r.fault(path+".id", fmt.Sprint(to.ID), "must differ from those before")
		}
		known[to.ID] = true
		out.Targets = append(out.Targets, to)
	}
	for i, m := range in.GetMemberships() {
		path := fmt.Sprintf("memberships[%d]", i)
		seats := plan.Seats{Generation: m.GetGeneration(), RingCode: uint8(r.upTo(path+".ring_code", m.GetRingCode(), 32)), Seats: make([]plan.Seat, 0, len(m.GetIds()))}
		if len(m.GetWeights()) != len(m.GetIds()) || len(m.GetFlags()) != len(m.GetIds()) {
			r.fault(path, fmt.Sprintf("%d ids, %d weights, %d flags", len(m.GetIds()), len(m.GetWeights()), len(m.GetFlags())), "must be as many of each")
			continue
		}
		for j, id := range m.GetIds() {
			s := plan.Seat{
				ID: r.word(path+".ids", id), Weight: r.word(path+".weights", m.GetWeights()[j]),
				Backup: m.GetFlags()[j]&seatBackup != 0, Down: m.GetFlags()[j]&seatDown != 0,
			}
			seats.Seats = append(seats.Seats, s)
		}
		out.Memberships = append(out.Memberships, seats)
	}
	return out, r.err()
}
