package convert

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/plan"
)

func byLoadKey(a, b load.Member) int {
	return cmp.Or(plan.CompareKeys(a.Endpoint, b.Endpoint), cmp.Compare(a.Key.Member, b.Key.Member))
}

// TestLoadReportsComeBack: written reports are read back unchanged, through bytes.
func TestLoadReportsComeBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := rapid.SliceOfNDistinct(rapid.Custom(func(rt *rapid.T) load.Member {
			m := load.Member{Key: load.Key{Endpoint: endpointKey(rt), Member: rapid.Uint16().Draw(rt, "member")}, Load: load.Load{Has: load.Part(rapid.IntRange(0, 7).Draw(rt, "has"))}}
			m.Every = rapid.SampledFrom([]time.Duration{0, 0, load.MinSample, load.MaxSample}).Draw(rt, "every")
			if m.Has&load.HasConnections != 0 {
				m.Connections = rapid.Uint32Range(0, math.MaxUint32-1).Draw(rt, "connections")
				m.Opened = rapid.Uint32().Draw(rt, "opened")
			}
			if m.Has&load.HasCPU != 0 {
				m.CPU = rapid.Uint16Range(0, load.FullCPU).Draw(rt, "cpu")
			}
			if m.Has&load.HasGiven != 0 {
				m.Given = rapid.Float32Range(0, load.MaxGiven).Draw(rt, "given")
			}
			return m
		}), 1, 12, func(m load.Member) load.Key { return m.Key }).Draw(rt, "members")
		raw, err := proto.Marshal(ToLoadReport(want))
		if err != nil {
			rt.Fatal(err)
		}
		in := &apiv1.LoadReport{}
		if err := proto.Unmarshal(raw, in); err != nil {
			rt.Fatal(err)
		}
		got, err := FromLoadReport(in)
		if err != nil {
			rt.Fatal(err)
		}
		slices.SortFunc(got, byLoadKey)
		slices.SortFunc(want, byLoadKey)
		if !slices.Equal(got, want) {
			rt.Fatalf("%+v\ncame back as\n%+v", want, got)
		}
	})
	if ToLoadReport(nil) != nil {
		t.Error("a report of nothing")
	}
}

// TestLoadReportIsCompact: a thousand fully known members of one endpoint take at most 11 bytes
// each.
func TestLoadReportIsCompact(t *testing.T) {
	var all []load.Member
	for i := range 1000 {
		all = append(all, load.Member{
			Key:  load.Key{Endpoint: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}, Member: uint16(i)},
			Load: load.Load{Connections: uint32(3 * i), CPU: uint16(i), Given: float32(i) / 7, Has: load.HasConnections | load.HasCPU | load.HasGiven},
		})
	}
	if n := proto.Size(ToLoadReport(all)); n > 11*len(all) {
		t.Errorf("%d bytes for %d members", n, len(all))
	} else {
		t.Logf("%d bytes for %d members: %d bytes/s at 10 Hz when all change", n, len(all), 10*n)
	}
}

func TestLoadReportRefusals(t *testing.T) {
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		e    *apiv1.EndpointLoad
		want string
	}{
		"too often":        {&apiv1.EndpointLoad{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Interval: durationpb.New(time.Millisecond)}, "interval: 1ms: must be 10ms to 10s"},
		"no address":       {&apiv1.EndpointLoad{Vip: "x", Protocol: "tcp", Port: 80}, "vip"},
		"too few values":   {&apiv1.EndpointLoad{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Members: []uint32{1, 2}, Cpu: []uint32{1}}, "cpu"},
		"a member too far": {&apiv1.EndpointLoad{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Members: []uint32{1 << 16}}, "members"},
		"too much CPU":     {&apiv1.EndpointLoad{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Members: []uint32{1}, Cpu: []uint32{1002}}, "members"},
		"no number":        {&apiv1.EndpointLoad{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Members: []uint32{1}, Given: []float32{nan}}, "members"},
		"too much":         {&apiv1.EndpointLoad{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Members: []uint32{1}, Given: []float32{2e9}}, "members"},
	} {
		got, err := FromLoadReport(&apiv1.LoadReport{Endpoints: []*apiv1.EndpointLoad{c.e}})
		if err == nil || !strings.Contains(err.Error(), "endpoints[0]") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
