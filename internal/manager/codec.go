package manager

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shuntlb/shunt/internal/lb"
)

// strictJSON is the JSON codec of the API. Unlike Connect's own it refuses unknown fields, because
// a misspelt one would change something else than intended. It has the names of the codecs that it
// replaces.
type strictJSON struct{ name string }

// jsonCodecs has a codec for each name under which clients request JSON.
var jsonCodecs = []strictJSON{{"json"}, {"json; charset=utf-8"}}

// Name implements connect.Codec.
func (c strictJSON) Name() string { return c.name }

// Marshal implements connect.Codec.
func (strictJSON) Marshal(m any) ([]byte, error) {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T: must be a protobuf message", m)
	}
	return protojson.Marshal(msg)
}

// Unmarshal implements connect.Codec.
func (strictJSON) Unmarshal(data []byte, m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T: must be a protobuf message", m)
	}
	if len(data) == 0 {
		return fmt.Errorf("JSON: must not be empty")
	}
	return protojson.Unmarshal(data, msg)
}

// unknownFields returns the faults of a binary message with fields that this version does not
// support.
func unknownFields(at string, m protoreflect.Message) []lb.Violation {
	var out []lb.Violation
	if len(m.GetUnknown()) > 0 {
		out = append(out, lb.Violation{Field: at + string(m.Descriptor().Name()), Allowed: "has fields that are " + lb.NotSupported})
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				out = append(out, unknownFields(at, v.List().Get(i).Message())...)
			}
		default:
			out = append(out, unknownFields(at, v.Message())...)
		}
		return len(out) == 0
	})
	return out
}
