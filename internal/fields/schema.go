// Package fields tells the fields of a protobuf message apart by natural paths, remembers which source of changes said
// which of them, and merges what sources say. It is pure.
//
// A field is a scalar, a list of scalars, a duration, or a message that is there and empty. A list of messages has
// items, told apart by key fields: `endpoints[tcp/80].backends[10.20.1.11:8080].weight` is a field, and the path of an
// item itself, without what follows the bracket, stands for its being there.
package fields

import (
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Schema says of each message that is an item of a list how its items are told apart.
type Schema map[protoreflect.FullName]Item

// Item is how items of one message are told apart.
type Item struct {
	// Key are the fields that belong to the item itself: they are nobody's, and always there.
	Key []protoreflect.Name
	// Text writes the key.
	Text func(protoreflect.Message) string
	// Needs is the field without which there can be no such item. A source that says it holds the item: the item is
	// there for as long as somebody holds it. One that says less, as a drain does, only adds to what others hold. Of a
	// list of items at least one must be held.
	Needs protoreflect.Name
	// Whole: nothing tells items apart for as long as they are there. A list of them is one value, a field of who says it;
	// Text writes an item for people.
	Whole bool
}

// duration is a message that is one value.
const duration protoreflect.FullName = "google.protobuf.Duration"

// shape is what a field of a message is.
type shape int

const (
	leaf    shape = iota // one value
	message              // fields of its own
	items                // a list told apart by keys
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

// item says how items of a list are told apart. A list of messages without a key is a mistake in the schema.
func (s Schema) item(fd protoreflect.FieldDescriptor) Item {
	it, ok := s[fd.Message().FullName()]
	if !ok {
		panic("fields: " + string(fd.FullName()) + " is a list of messages without a key")
	}
	return it
}

// key names the fields that belong to a message's key; a message that is no item has none.
func (s Schema) key(m protoreflect.Message) []protoreflect.Name {
	return s[m.Descriptor().FullName()].Key
}

func isKey(fd protoreflect.FieldDescriptor, key []protoreflect.Name) bool {
	return len(key) > 0 && slices.Contains(key, fd.Name())
}

// copyKey gives out the key of an item.
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
