package convert

import (
	"maps"
	"math"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/plan"
)

// FromHealth reads verdicts of hosts.
func FromHealth(in *apiv1.HealthReport) (plan.Verdicts, error) {
	r := &reader{}
	out := plan.Verdicts{Full: in.GetFull(), Endpoints: make([]plan.EndpointVerdicts, 0, len(in.GetEndpoints()))}
	for _, e := range in.GetEndpoints() {
		out.Endpoints = append(out.Endpoints, plan.EndpointVerdicts{
			Key:   r.key(e.GetVni(), e.GetVip(), e.GetProtocol(), e.GetPort(), e.GetPortEnd()),
			Alive: r.ids("alive", e.GetAlive()), Dead: r.ids("dead", e.GetDead()), Unknown: r.ids("unknown", e.GetUnknown()),
			Words: r.healthWords(e.GetWords()),
		})
	}
	return out, r.err()
}

func (r *reader) healthWords(in []*apiv1.HealthWords) map[uint16]string {
	if len(in) == 0 {
		return nil
	}
	out := map[uint16]string{}
	for _, w := range in {
		for _, id := range r.ids("words", w.GetMembers()) {
			out[id] = w.GetWords()
		}
	}
	return out
}

// ToHealthWords writes the reasons of members, each text once, in a fixed order, without empty
// ones.
func ToHealthWords[ID ~uint16 | ~uint32](of map[ID]string) (out []*apiv1.HealthWords) {
	byText := map[string]*apiv1.HealthWords{}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		text := of[id]
		if text == "" {
			continue
		}
		w := byText[text]
		if w == nil {
			w = &apiv1.HealthWords{Words: text}
			byText[text], out = w, append(out, w)
		}
		w.Members = append(w.Members, uint32(id))
	}
	return out
}

// ids reads a list of member ids; invalid ones are one fault for the list.
func (r *reader) ids(path string, in []uint32) []uint16 {
	if len(in) == 0 {
		return nil
	}
	out := make([]uint16, len(in))
	for i, id := range in {
		if id > math.MaxUint16 {
			r.word(path, id)
			return nil
		}
		out[i] = uint16(id)
	}
	return out
}

// ToHealth writes verdicts.
func ToHealth(v plan.Verdicts) *apiv1.HealthReport {
	out := &apiv1.HealthReport{Full: v.Full}
	for _, e := range v.Endpoints {
		out.Endpoints = append(out.Endpoints, &apiv1.EndpointHealth{
			Vni: e.Key.VNI, Vip: text(e.Key.VIP), Protocol: e.Key.Protocol.String(), Port: uint32(e.Key.Port), PortEnd: uint32(e.Key.PortEnd),
			Alive: toIDs(e.Alive), Dead: toIDs(e.Dead), Unknown: toIDs(e.Unknown),
			Words: ToHealthWords(e.Words),
		})
	}
	return out
}

func toIDs(ids []uint16) []uint32 {
	if len(ids) == 0 {
		return nil
	}
	out := make([]uint32, len(ids))
	for i, id := range ids {
		out[i] = uint32(id)
	}
	return out
}
