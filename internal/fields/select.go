package fields

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Select returns the fields of a message that are in the set, with the keys of the items that
// contain them.
func (s Schema) Select(m proto.Message, set Set) proto.Message {
	in := m.ProtoReflect()
	out, _ := s.choose(in, "", func(path string, _ bool) bool {
		_, ok := set[path]
		return ok
	}, naturally)
	setName(out, in)
	return out.Interface()
}

// Written returns the fields of a message that a text sets. says reports whether it sets a path
// with numbers, "endpoints[0].port". Items that are written are included, with their keys.
func (s Schema) Written(m proto.Message, says func(path string) bool) proto.Message {
	in := m.ProtoReflect()
	out, _ := s.choose(in, "", func(path string, _ bool) bool { return says(path) }, byNumber)
	setName(out, in)
	return out.Interface()
}

// setName copies the name of a whole object.
func setName(out, in protoreflect.Message) {
	if fd := in.Descriptor().Fields().ByName("name"); fd != nil && in.Has(fd) {
		out.Set(fd, in.Get(fd))
	}
}

// naturally and byNumber return the path element of an item.
func naturally(it Item, one protoreflect.Message, _ int) string { return it.Text(one) }
func byNumber(_ Item, _ protoreflect.Message, i int) string     { return fmt.Sprint(i) }

// choose copies the fields to keep, and the messages and items that are kept themselves or contain
// a kept field.
func (s Schema) choose(in protoreflect.Message, path string, keep func(path string, item bool) bool, key func(Item, protoreflect.Message, int) string) (out protoreflect.Message, any bool) {
	out, own := in.New(), s.key(in)
	copyKey(out, in, own)
	in.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		p := join(path, fd)
		switch {
		case isKey(fd, own):
		case s.shape(fd) == leaf:
			if keep(p, false) {
				out.Set(fd, v)
				any = true
			}
		case s.shape(fd) == message:
			if one, some := s.choose(v.Message(), p, keep, key); some || keep(p, false) {
				out.Set(fd, protoreflect.ValueOfMessage(one))
				any = true
			}
		default:
			it := s.item(fd)
			for i := range v.List().Len() {
				here := at(p, key(it, v.List().Get(i).Message(), i))
				if one, some := s.choose(v.List().Get(i).Message(), here, keep, key); some || keep(here, true) {
					out.Mutable(fd).List().Append(protoreflect.ValueOfMessage(one))
					any = true
				}
			}
		}
		return true
	})
	return out, any
}

// Restrict reduces m, which is the canonical form of of with defaults filled in, to the fields that
// are present in of, so that every value has its one spelling. Items are in the same places. If m
// has no value for a present field, it takes that of of.
func (s Schema) Restrict(m, of proto.Message) { s.restrict(m.ProtoReflect(), of.ProtoReflect()) }

func (s Schema) restrict(m, of protoreflect.Message) {
	fds, key := m.Descriptor().Fields(), s.key(m)
	for i := range fds.Len() {
		fd := fds.Get(i)
		has := m.Has(fd)
		switch present := of.Has(fd); {
		case isKey(fd, key):
		case !present && has:
			m.Clear(fd)
		case present && !has:
			m.Set(fd, of.Get(fd))
		case !present || s.shape(fd) == leaf:
		case s.shape(fd) == message:
			s.restrict(m.Get(fd).Message(), of.Get(fd).Message())
		default:
			mine, theirs := m.Get(fd).List(), of.Get(fd).List()
			for i := range mine.Len() {
				s.restrict(mine.Get(i).Message(), theirs.Get(i).Message())
			}
		}
	}
}
