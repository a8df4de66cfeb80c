package fields

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Field is one field with its value.
type Field struct {
	Path string
	// Value is invalid for an item, and for an empty message that is present.
	Value protoreflect.Value
	// write returns the text of an item if Value is a list of items (Item.Whole); else nil.
	write func(protoreflect.Message) string
	// Item: the path is that of an item. Held reports whether the item has all that it needs.
	Item, Held bool
}

// List returns the fields of a message in the order of its descriptor, without keys.
func (s Schema) List(m proto.Message) []Field {
	var out []Field
	s.walk(m.ProtoReflect(), "", func(f Field) { out = append(out, f) })
	return out
}

// walk reports whether m has any field.
func (s Schema) walk(m protoreflect.Message, path string, visit func(Field)) (any bool) {
	fds, key := m.Descriptor().Fields(), s.key(m)
	for i := range fds.Len() {
		fd := fds.Get(i)
		if !m.Has(fd) || isKey(fd, key) || path == "" && isName(fd) {
			continue
		}
		any = true
		p := join(path, fd)
		switch s.shape(fd) {
		case leaf:
			visit(Field{Path: p, Value: m.Get(fd), write: s.writer(fd)})
		case message:
			if !s.walk(m.Get(fd).Message(), p, visit) {
				visit(Field{Path: p})
			}
		case items:
			it, list := s.item(fd), m.Get(fd).List()
			for j := range list.Len() {
				one := list.Get(j).Message()
				here := at(p, it.Text(one))
				visit(Field{Path: here, Item: true, Held: s.held(one)})
				s.walk(one, here, visit)
			}
		}
	}
	return any
}

// writer returns the function that writes an item of a list that is one value.
func (s Schema) writer(fd protoreflect.FieldDescriptor) func(protoreflect.Message) string {
	if !fd.IsList() || fd.Message() == nil {
		return nil
	}
	return s.item(fd).Text
}

// isName reports whether the field is the key of a whole object.
func isName(fd protoreflect.FieldDescriptor) bool { return fd.Name() == "name" }

// held reports whether the item has all that it needs.
func (s Schema) held(one protoreflect.Message) bool {
	needs := s[one.Descriptor().FullName()].Needs
	if needs == "" {
		return true
	}
	fd := one.Descriptor().Fields().ByName(needs)
	if !one.Has(fd) {
		return false
	}
	if s.shape(fd) != items {
		return true
	}
	for i := range one.Get(fd).List().Len() {
		if s.held(one.Get(fd).List().Get(i).Message()) {
			return true
		}
	}
	return false
}

// Twice returns the place, by numbers, of the first item whose key an earlier item has; "" when
// there is none.
func (s Schema) Twice(m proto.Message) (place, key string) { return s.twice(m.ProtoReflect(), "") }

func (s Schema) twice(m protoreflect.Message, path string) (place, key string) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch s.shape(fd) {
		case message:
			if !s.nests(fd.Message()) {
				break
			}
			place, key = s.twice(v.Message(), join(path, fd))
		case items:
			it, seen := s.item(fd), map[string]bool{}
			for i := 0; i < v.List().Len() && place == ""; i++ {
				one := v.List().Get(i).Message()
				text := it.Text(one)
				here := func() string { return fmt.Sprintf("%s[%d]", join(path, fd), i) }
				if seen[text] {
					place, key = here(), text
					break
				}
				seen[text] = true
				if s.nests(one.Descriptor()) {
					place, key = s.twice(one, here())
				}
			}
		}
		return place == ""
	})
	return place, key
}

// maxText is the maximum number of bytes of a value, or of each item of a value, in a message.
const maxText = 80

// Text returns a field's value on one line.
func (f Field) Text() string {
	if !f.Value.IsValid() {
		return ""
	}
	if f.write == nil {
		return clip(valueText(f.Value))
	}
	var texts []string
	for i := range f.Value.List().Len() {
		texts = append(texts, clip(f.write(f.Value.List().Get(i).Message())))
	}
	return strings.Join(texts, ", ")
}

func clip(text string) string {
	if len(text) > maxText {
		return strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}

func valueText(v protoreflect.Value) string {
	switch x := v.Interface().(type) {
	case protoreflect.List:
		var texts []string
		for i := 0; i < x.Len() && i < maxText; i++ {
			texts = append(texts, x.Get(i).String())
		}
		return strings.Join(texts, ", ")
	case protoreflect.Message:
		if d, ok := x.Interface().(*durationpb.Duration); ok {
			return durationText(d.AsDuration())
		}
	}
	return v.String()
}

// durationText returns a duration as in files: "1m", not "1m0s".
func durationText(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Same reports whether two fields are equal. The zero Field is none.
func (f Field) Same(g Field) bool {
	return (f.Path == "") == (g.Path == "") && same(f.Value, g.Value)
}
