package convert

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestSchemaKnowsEveryList: each list of messages in an object has keys for its items.
func TestSchemaKnowsEveryList(t *testing.T) {
	found := 0
	var walk func(md protoreflect.MessageDescriptor)
	walk = func(md protoreflect.MessageDescriptor) {
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			if fd.Message() == nil {
				continue
			}
			if fd.IsList() {
				found++
				if _, ok := Schema[fd.Message().FullName()]; !ok {
					t.Errorf("%s: a list of messages without a key in Schema", fd.FullName())
				}
			}
			walk(fd.Message())
		}
	}
	kinds := (&apiv1.Object{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range kinds.Len() {
		walk(kinds.Get(i).Message())
	}
	if found != len(Schema) {
		t.Errorf("%d lists, %d in Schema", found, len(Schema))
	}
}

// TestSaidIsWhatIsPresent: Said adds nothing except keys to the content of a request, and with
// defaults filled in it is the same object.
func TestSaidIsWhatIsPresent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := randomObject(rt)
		o := ToObject(want)
		said, faults := Said(o, 0)
		if len(faults) > 0 {
			return // duplicate items
		}
		if !lb.Equal(said.Object, want) {
			rt.Fatalf("object %v, want %v", said.Object, want)
		}
		essential, faults := Essential(o)
		if len(faults) > 0 {
			rt.Fatal(faults)
		}
		back, faults := FromObject(WithContent(essential), 0)
		if len(faults) > 0 || !lb.Equal(back, want) {
			rt.Fatalf("what differs from defaults: %v, filled in %v, want %v: %v", essential, back, want, faults)
		}
	})
}

func TestSaidHasOneSpelling(t *testing.T) {
	in := &apiv1.Object{Kind: &apiv1.Object_Service{Service: &apiv1.Service{Name: "web", Vip: []string{"2001:DB8:F::0010"}, Endpoints: []*apiv1.Endpoint{{
		Protocol: "any", Health: &apiv1.Health{Tcp: &apiv1.TCPCheck{}, Port: 80},
		Backends: []*apiv1.Backend{{Dip: []string{"2001:DB8:20::11"}, Host: "10.20.1.1", Weight: proto.Uint32(1)}},
	}, {Protocol: "tcp", Port: "80", Backends: []*apiv1.Backend{{Dip: []string{"10.20.1.11", "2001:DB8:20::11"}, Drain: true}}}}}}}
	said, faults := Said(in, 0)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	var got []string
	for _, f := range Schema.List(said.Content) {
		got = append(got, f.Path+" = "+f.Text())
	}
	want := []string{
		"vip = 2001:db8:f::10",
		"endpoints[any/*] = ",
		"endpoints[any/*].backends[2001:db8:20::11] = ",
		"endpoints[any/*].backends[2001:db8:20::11].host = 10.20.1.1",
		"endpoints[any/*].backends[2001:db8:20::11].weight = 1",
		"endpoints[any/*].health.tcp = ",
		"endpoints[any/*].health.port = 80",
		"endpoints[tcp/80] = ",
		"endpoints[tcp/80].backends[10.20.1.11,[2001:db8:20::11]:80] = ",
		"endpoints[tcp/80].backends[10.20.1.11,[2001:db8:20::11]:80].drain = true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestItemsTwiceAreRefused(t *testing.T) {
	in := &apiv1.Object{Kind: &apiv1.Object_Service{Service: &apiv1.Service{Name: "web", Endpoints: []*apiv1.Endpoint{
		{Protocol: "udp", Port: "53"},
		{Protocol: "tcp", Port: "80", Backends: []*apiv1.Backend{{Dip: []string{"10.20.1.11"}}, {Dip: []string{"10.20.1.11"}, Port: 80}}},
	}}}}
	_, faults := Said(in, 0)
	if len(faults) != 1 || faults[0].String() != "services/web: endpoints[1].backends[1]: 10.20.1.11:80: must not be given twice" {
		t.Errorf("faults %v", faults)
	}
}
