package convert

import (
	"net/netip"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/fields"
	"github.com/shuntlb/shunt/internal/lb"
)

// Schema describes the keys of items of objects: an endpoint is `endpoints[tcp/80]`, a backend
// `backends[10.20.1.11:8080]` or, with two DIPs, `backends[10.20.1.11,[2001:db8:20:1::11]:8080]`, a
// router `bgp.peers[10.10.0.1]`. Checks have no key: several are one value.
var Schema = fields.Schema{
	"shunt.v1.Endpoint": {Key: []protoreflect.Name{"protocol", "port"}, Text: endpointText, Needs: "backends"},
	"shunt.v1.Backend":  {Key: []protoreflect.Name{"dip", "port"}, Text: backendText, Needs: "host"},
	"shunt.v1.BGPPeer":  {Key: []protoreflect.Name{"address"}, Text: peerText, Needs: "asn"},
	"shunt.v1.Check":    {Text: checkText, Whole: true},
	"shunt.v1.Share":    {Text: shareText, Whole: true},
}

func endpointText(m protoreflect.Message) string {
	ep := m.Interface().(*apiv1.Endpoint)
	return ep.GetProtocol() + "/" + ep.GetPort()
}

func backendText(m protoreflect.Message) string {
	b := m.Interface().(*apiv1.Backend)
	dips := strings.Join(b.GetDip(), ",")
	if b.GetPort() == 0 {
		return dips
	}
	last := ""
	if n := len(b.GetDip()); n > 0 {
		last = b.GetDip()[n-1]
	}
	a, _ := netip.ParseAddr(last)
	return strings.TrimSuffix(dips, last) + netip.AddrPortFrom(a, uint16(b.GetPort())).String()
}

// BackendPath returns the path of a backend within its service.
func BackendPath(ep *apiv1.Endpoint, b *apiv1.Backend) string {
	return "endpoints[" + endpointText(ep.ProtoReflect()) + "].backends[" + backendText(b.ProtoReflect()) + "]"
}

// shareText returns one item of a Tenant's shared, as in files.
func shareText(m protoreflect.Message) string {
	s := m.Interface().(*apiv1.Share)
	list := func(name string, items []string) string { return name + ": [" + strings.Join(items, ", ") + "]" }
	return "{" + list("tenants", s.GetTenants()) + ", " + list("dips", s.GetDips()) + ", " + list("vips", s.GetVips()) + "}"
}

func peerText(m protoreflect.Message) string { return m.Interface().(*apiv1.BGPPeer).GetAddress() }

// Content returns the message of the object's kind, or nil.
func Content(o *apiv1.Object) proto.Message {
	m := o.ProtoReflect()
	fd := m.WhichOneof(m.Descriptor().Oneofs().ByName("kind"))
	if fd == nil {
		return nil
	}
	return m.Get(fd).Message().Interface()
}

// WithContent returns an object with the message of a kind.
func WithContent(content proto.Message) *apiv1.Object {
	out := &apiv1.Object{}
	m, want := out.ProtoReflect(), content.ProtoReflect().Descriptor().FullName()
	kinds := m.Descriptor().Oneofs().ByName("kind").Fields()
	for i := range kinds.Len() {
		if fd := kinds.Get(i); fd.Message().FullName() == want {
			m.Set(fd, protoreflect.ValueOfMessage(content.ProtoReflect()))
			return out
		}
	}
	panic("convert: " + string(want) + " is no kind of object")
}

// Statement is the content of an object in a request.
type Statement struct {
	// Content has every value in its canonical form, and no defaults.
	Content proto.Message
	// Object includes defaults. It is valid alone only if no required field is left to other
	// sources.
	Object lb.Object
	// Full is Object for the API.
	Full *apiv1.Object
}

// Said reads the content of an object in a request. It returns the faults of values that the types
// cannot hold, and of duplicate items; index is the object's place in the request.
func Said(o *apiv1.Object, index int) (Statement, []lb.Violation) {
	obj, faults := FromObject(o, index)
	if len(faults) > 0 {
		return Statement{}, faults
	}
	out := ToObject(obj)
	full := Content(out)
	if place, key := Schema.Twice(full); place != "" {
		return Statement{}, []lb.Violation{{Field: lb.Ref(obj.Kind(), obj.ObjectName()) + ": " + place, Value: key, Allowed: "must not be given twice"}}
	}
	said := Content(ToObject(obj))
	Schema.Restrict(said, Content(spreadSingle(o)))
	if s, ok := said.(*apiv1.Service); ok {
		dropBeside(s)
	}
	return Statement{said, obj, out}, nil
}

// Written returns a document's object for the API: the fields that the document sets, without
// defaults.
func Written(d lb.Document) *apiv1.Object {
	return WithContent(Schema.Written(Content(ToObject(d.Object)), d.Writes))
}

// Essential returns the part of an object, stored with its defaults, that must have been set
// explicitly: without it the defaults would fill in other values. It keeps a default within an
// optional message.
func Essential(o *apiv1.Object) (proto.Message, []lb.Violation) {
	full, said := Content(o), fields.Set{}
	for _, f := range Schema.List(full) {
		if f.Item {
			said[f.Path] = struct{}{}
		}
	}
	for {
		content := Schema.Select(full, said)
		obj, faults := FromObject(WithContent(content), 0)
		if len(faults) > 0 {
			return nil, faults
		}
		filled := map[string]fields.Field{}
		for _, f := range Schema.List(Content(ToObject(obj))) {
			filled[f.Path] = f
		}
		found := false
		for _, f := range Schema.List(full) {
			if f.Same(filled[f.Path]) {
				continue
			}
			if _, known := said[f.Path]; !known {
				said[f.Path], found = struct{}{}, true
			}
		}
		if !found {
			return content, nil
		}
	}
}

// FromOwners reads owners, packed or not.
func FromOwners(in []*apiv1.FieldOwner) []fields.Owner {
	out := make([]fields.Owner, len(in))
	for i, o := range in {
		out[i] = fields.Owner{Source: o.GetSource(), Fields: o.GetFields()}
	}
	return out
}

// ToOwners writes owners, packed for the store but not for the API.
func ToOwners(in []fields.Owner) []*apiv1.FieldOwner {
	out := make([]*apiv1.FieldOwner, len(in))
	for i, o := range in {
		out[i] = &apiv1.FieldOwner{Source: o.Source, Fields: o.Fields}
	}
	return out
}
