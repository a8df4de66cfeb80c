package manager_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/store"
)

// file returns the service web with a backend on each of the hosts, without the fields that have a
// default, as in a file.
func file(hosts ...int) *apiv1.Service {
	s := &apiv1.Service{Name: "web", Vip: []string{"203.0.113.10"}, Endpoints: []*apiv1.Endpoint{{Protocol: "tcp", Port: "80"}}}
	for _, h := range hosts {
		s.Endpoints[0].Backends = append(s.Endpoints[0].Backends, &apiv1.Backend{
			Dip: []string{fmt.Sprintf("10.20.%d.11", h)}, Port: 8080, Host: fmt.Sprintf("10.20.%d.1", h),
		})
	}
	return s
}

// drained returns the object that `shunt drain` applies for a backend.
func drained(host int) *apiv1.Service {
	return &apiv1.Service{Name: "web", Endpoints: []*apiv1.Endpoint{{Protocol: "tcp", Port: "80", Backends: []*apiv1.Backend{
		{Dip: []string{fmt.Sprintf("10.20.%d.11", host)}, Port: 8080, Drain: true},
	}}}}
}

func (r *rig) say(source string, force bool, s *apiv1.Service) (*apiv1.ApplyResponse, error) {
	r.t.Helper()
	req := &apiv1.ApplyRequest{Source: source, Force: force, Objects: []*apiv1.Object{{Kind: &apiv1.Object_Service{Service: s}}}}
	res, err := r.admin.Apply(r.t.Context(), connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// says calls say, which must succeed, and returns the object.
func (r *rig) says(source string, s *apiv1.Service) *apiv1.Object {
	r.t.Helper()
	res, err := r.say(source, false, s)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Changes[0].After
}

// owned lists the fields of a source.
func owned(o *apiv1.Object, source string) []string {
	for _, own := range o.GetOwners() {
		if own.GetSource() == source {
			return own.GetFields()
		}
	}
	return nil
}

func newOwnerRig(t *testing.T) *rig {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1))
	return r
}

const (
	second      = "endpoints[tcp/80].backends[10.20.2.11:8080]"
	secondDrain = second + ".drain"
)

func TestADrainOutlivesTheFile(t *testing.T) {
	r := newOwnerRig(t)
	o := r.says("", file(1, 2))
	want := []string{
		"endpoints[tcp/80]", "endpoints[tcp/80].backends[10.20.1.11:8080]", "endpoints[tcp/80].backends[10.20.1.11:8080].host",
		second, second + ".host", "vip",
	}
	if got := owned(o, "apply"); !slices.Equal(got, want) {
		t.Fatalf("apply owns %q, want %q", got, want)
	}
	if b := o.GetService().Endpoints[0].Backends[1]; b.GetWeight() != 1 || o.GetService().Endpoints[0].Affinity != "flow" {
		t.Fatalf("defaults are not shown: %v", o)
	}
	o = r.says("drain", drained(2))
	if got := owned(o, "drain"); !slices.Equal(got, []string{secondDrain}) || !slices.Equal(owned(o, "apply"), want) {
		t.Fatalf("after the drain: owners %v", o.GetOwners())
	}
	again := r.says("", file(1, 2))
	if !proto.Equal(again, o) || !again.GetService().Endpoints[0].Backends[1].Drain {
		t.Fatalf("applying the file again: %v, want %v", again, o)
	}
	o = r.says("drain", &apiv1.Service{Name: "web"})
	if o.GetService().Endpoints[0].Backends[1].Drain || owned(o, "drain") != nil {
		t.Fatalf("after the undrain: %v", o)
	}
}

func TestADrainOfTheFileOutlivesUndrain(t *testing.T) {
	r := newOwnerRig(t)
	f := file(1, 2)
	f.Endpoints[0].Backends[1].Drain = true
	r.says("", f)
	r.says("drain", drained(2))
	o := r.says("drain", &apiv1.Service{Name: "web"})
	if !o.GetService().Endpoints[0].Backends[1].Drain || !slices.Contains(owned(o, "apply"), secondDrain) {
		t.Fatalf("the file's drain is gone: %v", o)
	}
}

func TestADrainedBackendCanBeTakenOut(t *testing.T) {
	r := newOwnerRig(t)
	r.says("", file(1, 2))
	r.says("drain", drained(2))
	o := r.says("", file(1))
	if len(o.GetService().Endpoints[0].Backends) != 1 || owned(o, "drain") != nil {
		t.Fatalf("after its file does not say it any more: %v", o)
	}
	if o = r.says("", file(1, 2)); o.GetService().Endpoints[0].Backends[1].Drain {
		t.Fatal("a backend that came back drains")
	}
}

func TestConflicts(t *testing.T) {
	r := newOwnerRig(t)
	r.says("", file(1, 2))
	scaled := func(weight uint32) *apiv1.Service {
		s := drained(2)
		s.Endpoints[0].Backends[0].Drain, s.Endpoints[0].Backends[0].Weight = false, proto.Uint32(weight)
		return s
	}
	before := r.says("scaler", scaled(0))
	if got := owned(before, "scaler"); !slices.Equal(got, []string{second + ".weight"}) || before.GetService().Endpoints[0].Backends[1].GetWeight() != 0 {
		t.Fatalf("a weight of 0 was not taken as said: %v", before)
	}
	heavy := file(1, 2)
	heavy.Endpoints[0].Backends[0].Weight, heavy.Endpoints[0].Backends[1].Weight = proto.Uint32(3), proto.Uint32(5)
	_, err := r.say("", false, heavy)
	want := []string{"services/web: " + second + ".weight: 5: must be 0, as scaler says, which owns it; force takes it over"}
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || !slices.Equal(violations(t, err), want) {
		t.Fatalf("error %v, violations %q, want %q", err, violations(t, err), want)
	}
	if now := r.get("Service", "web")[0]; !proto.Equal(now, before) {
		t.Fatalf("a refused apply changed %v into %v", before, now)
	}
	heavy.Endpoints[0].Backends[1].Weight = proto.Uint32(0)
	if o := r.says("", heavy); !slices.Contains(owned(o, "apply"), second+".weight") || !slices.Contains(owned(o, "scaler"), second+".weight") {
		t.Fatalf("equal values are not owned by both: %v", o.GetOwners())
	}
	heavy.Endpoints[0].Backends[1].Weight = proto.Uint32(5)
	res, err := r.say("", true, heavy)
	if err != nil || owned(res.Changes[0].After, "scaler") != nil || res.Changes[0].After.GetService().Endpoints[0].Backends[1].GetWeight() != 5 {
		t.Fatalf("by force: %v %v", res, err)
	}
	if _, err = r.say("scaler", false, scaled(0)); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Fatalf("error %v: the field has changed hands", err)
	}
}

// TestPartsThatNeedOthers: a part of an object that no source made is refused with the missing
// fields, and changes nothing.
func TestPartsThatNeedOthers(t *testing.T) {
	r := newOwnerRig(t)
	_, err := r.say("drain", false, drained(2))
	if got := violations(t, err); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.HasPrefix(got[0], "services/web: vip: : is missing") {
		t.Fatalf("a drain of nothing: %v %q", err, got)
	}
	r.says("", file(1))
	_, err = r.say("drain", false, drained(2))
	if got := violations(t, err); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.HasSuffix(got[0], "endpoints[0].backends[0].host: : is missing, must be an IPv4 or IPv6 address") {
		t.Fatalf("a drain of a backend that is not there: %v %q", err, got)
	}
	if o := r.get("Service", "web")[0]; len(o.GetService().Endpoints[0].Backends) != 1 || len(o.GetOwners()) != 1 {
		t.Fatalf("it left %v", o)
	}
}

func TestSourcesHaveNames(t *testing.T) {
	r := newOwnerRig(t)
	for _, source := range []string{"Apply", "a b", "*", strings.Repeat("a", 64), "é"} {
		_, err := r.say(source, false, file(1))
		want := []string{"source: " + source + ": must be 1 to 63 of a-z, 0-9 and -"}
		if connect.CodeOf(err) != connect.CodeInvalidArgument || !slices.Equal(violations(t, err), want) {
			t.Errorf("source %q: error %v", source, err)
		}
	}
	if _, err := r.say(strings.Repeat("a", 63), false, file(1)); err != nil {
		t.Error(err)
	}
}

// TestObjectsWithoutOwners: fields that were stored before fields had owners belong to apply,
// unless they are defaults.
func TestObjectsWithoutOwners(t *testing.T) {
	s := store.NewMemory()
	old := convert.ToObject(web(1, 2))
	old.Generation = 7
	old.GetService().Endpoints[0].Backends[1].Weight = proto.Uint32(9)
	value, err := proto.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	net, err := proto.Marshal(convert.ToObject(network()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/shunt/objects/Service/web", value), store.Put("/shunt/objects/Network/main", net)}}); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, s)
	o := r.get("Service", "web")[0]
	want := []string{
		"endpoints[tcp/80]", "endpoints[tcp/80].backends[10.20.1.11:8080]", "endpoints[tcp/80].backends[10.20.1.11:8080].host",
		second, second + ".host", second + ".weight", "endpoints[tcp/80].repairWindow", "vip",
	}
	if got := owned(o, "apply"); !slices.Equal(got, want) || o.GetGeneration() != 7 {
		t.Fatalf("apply owns %q of generation %d, want %q", got, o.GetGeneration(), want)
	}
	if o = r.says("drain", drained(2)); !slices.Equal(owned(o, "apply"), want) || !slices.Equal(owned(o, "drain"), []string{secondDrain}) {
		t.Fatalf("owners %v", o.GetOwners())
	}
	if o = r.says("", file(1, 2)); o.GetService().Endpoints[0].Backends[1].GetWeight() != 1 || o.GetGeneration() != 9 {
		t.Fatalf("a field that its owner does not say any more: %v", o)
	}
}
