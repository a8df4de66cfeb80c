package convert

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
)

// ToLoadReport writes loads of members, grouped by endpoint and interval; nil for none.
func ToLoadReport(members []load.Member) *apiv1.LoadReport {
	if len(members) == 0 {
		return nil
	}
	out := &apiv1.LoadReport{}
	type pace struct {
		lb.EndpointKey
		every time.Duration
	}
	byKey := map[pace]*apiv1.EndpointLoad{}
	has := map[*apiv1.EndpointLoad]load.Part{}
	for _, m := range members {
		e := byKey[pace{m.Endpoint, m.Every}]
		if e == nil {
			k := m.Endpoint
			e = &apiv1.EndpointLoad{Vni: k.VNI, Vip: text(k.VIP), Protocol: k.Protocol.String(), Port: uint32(k.Port), PortEnd: uint32(k.PortEnd)}
			if m.Every != 0 {
				e.Interval = durationpb.New(m.Every)
			}
			byKey[pace{k, m.Every}] = e
			out.Endpoints = append(out.Endpoints, e)
		}
		connections, cpu, given := uint32(0), uint32(0), float32(-1)
		if m.Has&load.HasConnections != 0 {
			connections = min(m.Connections, math.MaxUint32-1) + 1
		}
		if m.Has&load.HasCPU != 0 {
			cpu = uint32(m.CPU) + 1
		}
		if m.Has&load.HasGiven != 0 {
			given = m.Given
		}
		e.Members = append(e.Members, uint32(m.Member))
		e.Connections, e.Cpu, e.Given = append(e.Connections, connections), append(e.Cpu, cpu), append(e.Given, given)
		e.Opened = append(e.Opened, m.Opened)
		has[e] |= m.Has
	}
	for _, e := range out.Endpoints {
		if has[e]&load.HasConnections == 0 {
			e.Connections, e.Opened = nil, nil
		}
		if has[e]&load.HasCPU == 0 {
			e.Cpu = nil
		}
		if has[e]&load.HasGiven == 0 {
			e.Given = nil
		}
	}
	return out
}

// FromLoadReport reads loads of members.
func FromLoadReport(in *apiv1.LoadReport) ([]load.Member, error) {
	var out []load.Member
	for i, e := range in.GetEndpoints() {
		r := &reader{}
		key := r.key(e.GetVni(), e.GetVip(), e.GetProtocol(), e.GetPort(), e.GetPortEnd())
		n := len(e.GetMembers())
		for name, have := range map[string]int{"connections": len(e.GetConnections()), "cpu": len(e.GetCpu()), "given": len(e.GetGiven()), "opened": len(e.GetOpened())} {
			if have != 0 && have != n {
				r.fault(name, fmt.Sprintf("%d values", have), fmt.Sprintf("must be one for each of %d members, or none", n))
			}
		}
		if err := r.err(); err != nil {
			return nil, fmt.Errorf("endpoints[%d]: %w", i, err)
		}
		every := r.duration("interval", e.GetInterval())
		if !(load.Load{Every: every}).Valid() {
			r.fault("interval", every.String(), fmt.Sprintf("must be %v to %v", load.MinSample, load.MaxSample))
		}
		for j, id := range e.GetMembers() {
			m := load.Member{Key: load.Key{Endpoint: key, Member: r.word("members", id)}, Load: load.Load{Every: every}}
			if c := e.GetConnections(); len(c) > 0 && c[j] > 0 {
				m.Connections, m.Has = c[j]-1, m.Has|load.HasConnections
				if o := e.GetOpened(); len(o) > 0 {
					m.Opened = o[j]
				}
			}
			if c := e.GetCpu(); len(c) > 0 && c[j] > 0 {
				m.CPU, m.Has = uint16(min(c[j]-1, math.MaxUint16)), m.Has|load.HasCPU
			}
			if g := e.GetGiven(); len(g) > 0 && !(g[j] < 0) {
				m.Given, m.Has = g[j], m.Has|load.HasGiven
			}
			if !m.Valid() {
				r.fault("members", fmt.Sprintf("%d: cpu %d, given %v", id, m.CPU, m.Given), fmt.Sprintf("must have at most %d and 0 to %g", load.FullCPU, load.MaxGiven))
			}
			out = append(out, m)
		}
		if err := r.err(); err != nil {
			return nil, fmt.Errorf("endpoints[%d]: %w", i, err)
		}
	}
	return out, nil
}

// ToMemberLoad writes the known parts of a member's load, with the age of the report.
func ToMemberLoad(l load.Load, age time.Duration) *apiv1.MemberLoad {
	out := &apiv1.MemberLoad{Age: durationpb.New(age)}
	if l.Has&load.HasConnections != 0 {
		out.Connections = &l.Connections
	}
	if l.Has&load.HasCPU != 0 {
		out.Cpu = new(uint32(l.CPU))
	}
	if l.Has&load.HasGiven != 0 {
		out.Given = &l.Given
	}
	return out
}
