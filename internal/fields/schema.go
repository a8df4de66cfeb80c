// Package fields identifies the fields of a protobuf message by natural paths, stores which source
// of changes set which of them, and merges the content of sources. It is pure.
//
// A field is a scalar, a list of scalars, a duration, or an empty message that is present. A list
// of messages has items, identified by key fields:
// `endpoints[tcp/80].backends[10.20.1.11:8080].weight` is a field, and the path of an item itself,
// without the part after the bracket, represents its presence.
package fields

import (
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Schema describes the key of each message that is an item of a list.
type Schema map[protoreflect.FullName]Item

// Item describes the key of items of one message.
type Item struct {
	// Key are the fields that belong to the item itself: they have no owner, and are always
	// present.
	Key []protoreflect.Name
	// Text returns the key as text.
	Text func(protoreflect.Message) string
	// Needs is the field without which such an item cannot exist. A source that sets it holds the
	// item: the item exists while any source holds it. A source that sets other fields only, as a
	// drain does, adds to an item of others. Of a list of items at least one must be held.
	Needs protoreflect.Name
	// Whole: items have no key. A list of them is one value, a field of the source that sets it;
	// Text returns an item for people.
	Whole bool
}

// duration is a message that counts as one value.
const duration protoreflect.FullName = "google.protobuf.Duration"

// shape is the type of a field of a message.
type shape int

const (
	leaf    shape = iota // one value
	message              // fields of its own
	items                // a list of items with keys
)

func (s Schema) shape(fd protoreflect.FieldDescriptor) shape {
	switch {
	case fd.Message() == nil, fd.Message().FullName() == duration:
		return leaf
	case fd.IsList() && s[fd.Message().FullName()].Whole:
		return leaf
	case fd.IsList():
		return items
	}
	return message
}

// item returns the description of items of a list. A list of messages without a key is an error in
// the schema.
func (s Schema) item(fd protoreflect.FieldDescriptor) Item {
	it, ok := s[fd.Message().FullName()]
	if !ok {
		panic("fields: " + string(fd.FullName()) + " is a list of messages without a key")
	}
	return it
}

// key returns the fields of a message's key; a message that is not an item has none.
func (s Schema) key(m protoreflect.Message) []protoreflect.Name {
	return s[m.Descriptor().FullName()].Key
}

func isKey(fd protoreflect.FieldDescriptor, key []protoreflect.Name) bool {
	return len(key) > 0 && slices.Contains(key, fd.Name())
}

// copyKey copies the key of an item.
func copyKey(out, from protoreflect.Message, key []protoreflect.Name) {
	for _, name := range key {
		if fd := from.Descriptor().Fields().ByName(name); from.Has(fd) {
			out.Set(fd, from.Get(fd))
		}
	}
}

// join appends a field's name to a path.
func join(path string, fd protoreflect.FieldDescriptor) string {
	if path == "" {
		return fd.JSONName()
	}
	return path + "." + fd.JSONName()
}

// at appends an item's key to a path.
func at(path, key string) string { return path + "[" + key + "]" }
