package manager

import (
	"maps"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestEveryFieldHasASchema lists the last fields of objects that managers of schema 2 support. A
// later field must be in newFields, with the schema that added it. Otherwise an older manager that
// becomes leader would lose the field.
func TestEveryFieldHasASchema(t *testing.T) {
	last := map[protoreflect.FullName]protoreflect.FieldNumber{}
	var visit func(protoreflect.MessageDescriptor)
	visit = func(md protoreflect.MessageDescriptor) {
		if _, known := last[md.FullName()]; known {
			return
		}
		last[md.FullName()] = 0
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			if newSince(fd) > schemaMembers {
				continue
			}
			last[md.FullName()] = max(last[md.FullName()], fd.Number())
			if fd.Message() != nil && !fd.IsMap() && fd.Message().ParentFile().Package() == md.ParentFile().Package() {
				visit(fd.Message())
			}
		}
	}
	visit((&apiv1.Object{}).ProtoReflect().Descriptor())
	want := map[protoreflect.FullName]protoreflect.FieldNumber{
		"shunt.v1.BFD":            3,
		"shunt.v1.BGP":            3,
		"shunt.v1.BGPPeer":        4,
		"shunt.v1.Backend":        6,
		"shunt.v1.Capacity":       2,
		"shunt.v1.Endpoint":       17,
		"shunt.v1.FieldOwner":     2,
		"shunt.v1.HTTPCheck":      2,
		"shunt.v1.Health":         8,
		"shunt.v1.Idle":           2,
		"shunt.v1.Limits":         3,
		"shunt.v1.Network":        6,
		"shunt.v1.Node":           7,
		"shunt.v1.Object":         8,
		"shunt.v1.Placement":      2,
		"shunt.v1.Policy":         5,
		"shunt.v1.Quotas":         4,
		"shunt.v1.Service":        9,
		"shunt.v1.SourceAffinity": 3,
		"shunt.v1.Sources":        2,
		"shunt.v1.TCPCheck":       0,
		"shunt.v1.Tenant":         4,
	}
	if !maps.Equal(last, want) {
		t.Errorf("last fields of schema 2: %v, must be %v: what is new goes into newFields, with a new schema once this one was released", last, want)
	}
}
