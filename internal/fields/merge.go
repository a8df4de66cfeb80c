package fields

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Conflict is a field that a source sets to another value than its owners.
type Conflict struct {
	Wanted, Present Field
	Owners          []string
}

// Apply replaces the content of a source by said. Fields that it set before and omits now are
// removed unless another source sets them; fields of others that it does not mention stay. If
// others set a field to another value, Apply returns only the conflicts; with force the field
// changes its owner. Owners are passed and returned packed.
//
// An item is removed when its last holder omits it, with the fields that others set in it. An item
// that is set and that no source holds is in the result, so that the caller reports the missing
// fields. Neither present nor said is modified, but the result shares their values, or is said
// itself.
func (s Schema) Apply(present proto.Message, owners []Owner, said proto.Message, source string, force bool) (proto.Message, []Owner, []Conflict) {
	if alone(owners, source) && s.whole(said.ProtoReflect()) {
		return said, []Owner{{source, []string{Everything}}}, nil
	}
	next, named, conflicts := s.claim(present, s.Unpack(present, owners), said, source)
	if len(conflicts) > 0 && !force {
		return nil, nil, conflicts
	}
	b := &builder{Schema: s, owned: Set{}, named: named, kept: Set{}}
	for _, set := range next {
		maps.Copy(b.owned, set)
	}
	out := b.message(present.ProtoReflect(), said.ProtoReflect(), "").Interface()
	for o, set := range next {
		maps.DeleteFunc(set, func(path string, _ struct{}) bool { return !b.has(path) })
		if len(set) == 0 {
			delete(next, o)
		}
	}
	return out, s.Pack(out, next), nil
}

// alone reports whether no other source owns any field.
func alone(owners []Owner, source string) bool {
	return len(owners) == 0 || len(owners) == 1 && owners[0].Source == source && len(owners[0].Fields) == 1 && owners[0].Fields[0] == Everything
}

// whole reports whether a message sets any field, and all items in it are held. Its source then
// owns everything in it.
func (s Schema) whole(m protoreflect.Message) bool {
	any, all := false, true
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		any = any || !isName(fd)
		for i := 0; s.shape(fd) == items && i < v.List().Len(); i++ {
			one := v.List().Get(i).Message()
			all = all && s.held(one) && s.whole(one)
		}
		if s.shape(fd) == message && s.nests(fd.Message()) {
			all = all && s.whole(v.Message())
		}
		return all
	})
	return any && all
}

// nests reports whether a message can contain items.
func (s Schema) nests(md protoreflect.MessageDescriptor) bool {
	for i := range md.Fields().Len() {
		if s.shape(md.Fields().Get(i)) == items {
			return true
		}
	}
	return false
}

// claim returns the owners after the source's values are set, the items that it names, and the
// conflicts with others.
func (s Schema) claim(present proto.Message, owners Owners, said proto.Message, source string) (next Owners, named Set, conflicts []Conflict) {
	old := map[string]Field{}
	s.walk(present.ProtoReflect(), "", func(f Field) { old[f.Path] = f })
	named, mine := Set{}, Set{}
	delete(owners, source)
	s.walk(said.ProtoReflect(), "", func(f Field) {
		if f.Item {
			named[f.Path] = struct{}{}
		}
		if !f.Item || f.Held {
			mine[f.Path] = struct{}{}
		}
		was, there := old[f.Path]
		if f.Item || !there || same(was.Value, f.Value) {
			return
		}
		others := owners.of(f.Path)
		if len(others) == 0 {
			return
		}
		conflicts = append(conflicts, Conflict{f, was, others})
		for _, o := range others {
			delete(owners[o], f.Path)
		}
	})
	owners[source] = mine
	return owners, named, conflicts
}

// same reports whether two values are equal; two invalid ones are.
func same(a, b protoreflect.Value) bool {
	if !a.IsValid() || !b.IsValid() {
		return a.IsValid() == b.IsValid()
	}
	return a.Equal(b)
}

// builder builds a message from the old content and that of the source.
type builder struct {
	Schema
	owned Set // by any source, afterwards
	named Set // items in the new content of the source
	kept  Set // fields of the result
}

func (b *builder) has(path string) bool {
	_, ok := b.kept[path]
	return ok
}

func (b *builder) keep(path string) bool {
	if _, ok := b.owned[path]; !ok {
		return false
	}
	b.kept[path] = struct{}{}
	return true
}

// message builds one message; either side may be nil.
func (b *builder) message(old, said protoreflect.Message, path string) protoreflect.Message {
	kind := old
	if kind == nil {
		kind = said
	}
	out, key := kind.New(), b.key(kind)
	copyKey(out, kind, key)
	fds := kind.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		inOld, inSaid := old != nil && old.Has(fd), said != nil && said.Has(fd)
		if !inOld && !inSaid || isKey(fd, key) {
			continue
		}
		p := join(path, fd)
		switch b.shape(fd) {
		case leaf:
			b.leaf(out, fd, p, old, said, inSaid)
		case message:
			b.nested(out, fd, p, sub(old, fd, inOld), sub(said, fd, inSaid))
		case items:
			b.items(out, fd, p, list(old, fd, inOld), list(said, fd, inSaid))
		}
	}
	return out
}

func (b *builder) leaf(out protoreflect.Message, fd protoreflect.FieldDescriptor, p string, old, said protoreflect.Message, inSaid bool) {
	switch {
	case p == "name":
		out.Set(fd, cmpMessage(said, old).Get(fd))
	case !b.keep(p):
	case inSaid:
		out.Set(fd, said.Get(fd))
	default:
		out.Set(fd, old.Get(fd))
	}
}

func cmpMessage(a, b protoreflect.Message) protoreflect.Message {
	if a != nil {
		return a
	}
	return b
}

// nested builds a message within a message. An empty one is kept only if a source sets it.
func (b *builder) nested(out protoreflect.Message, fd protoreflect.FieldDescriptor, p string, old, said protoreflect.Message) {
	one := b.message(old, said, p)
	empty := true
	one.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
		empty = false
		return false
	})
	if b.keep(p) || !empty {
		out.Set(fd, protoreflect.ValueOfMessage(one))
	}
}

// items builds a list. If no other source has items in it, it equals the source's list; otherwise
// existing items keep their places, and new ones follow.
func (b *builder) items(out protoreflect.Message, fd protoreflect.FieldDescriptor, p string, old, said protoreflect.List) {
	it := b.item(fd)
	before, now := map[string]protoreflect.Message{}, map[string]protoreflect.Message{}
	var order, spoken, fresh []string
	each(old, func(one protoreflect.Message) {
		key := it.Text(one)
		before[key] = one
		order = append(order, key)
	})
	each(said, func(one protoreflect.Message) {
		key := it.Text(one)
		now[key] = one
		spoken = append(spoken, key)
		if before[key] == nil {
			fresh = append(fresh, key)
		}
	})
	order = slices.DeleteFunc(order, func(key string) bool { return now[key] == nil && !b.keep(at(p, key)) })
	if order = append(order, fresh...); len(order) == len(spoken) {
		order = spoken
	}
	for _, key := range order {
		here := at(p, key)
		b.keep(here)
		out.Mutable(fd).List().Append(protoreflect.ValueOfMessage(b.message(before[key], now[key], here)))
	}
}

func each(l protoreflect.List, do func(protoreflect.Message)) {
	for i := 0; l != nil && i < l.Len(); i++ {
		do(l.Get(i).Message())
	}
}

func sub(m protoreflect.Message, fd protoreflect.FieldDescriptor, has bool) protoreflect.Message {
	if !has {
		return nil
	}
	return m.Get(fd).Message()
}

func list(m protoreflect.Message, fd protoreflect.FieldDescriptor, has bool) protoreflect.List {
	if !has {
		return nil
	}
	return m.Get(fd).List()
}
