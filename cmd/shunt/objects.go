package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// domainObject converts an object of the API. It returns nil for nil.
func domainObject(o *apiv1.Object) (lb.Object, error) {
	if o == nil {
		return nil, nil
	}
	object, faults := convert.FromObject(o, 0)
	if len(faults) > 0 {
		return nil, fmt.Errorf("object from the manager: %w", &lb.Error{Violations: faults})
	}
	return object, nil
}

// objectYAML returns an object of the API in canonical YAML, or "" for nil.
func objectYAML(o *apiv1.Object) (string, error) {
	object, err := domainObject(o)
	if err != nil || object == nil {
		return "", err
	}
	return string(lb.Marshal(object)), nil
}

// fetch reads objects of a kind, in order of name. It reads all if name is empty.
func (c *client) fetch(ctx context.Context, kind lb.Kind, name string) ([]*apiv1.Object, error) {
	response, err := c.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: string(kind), Name: name}))
	if err != nil {
		return nil, err
	}
	objects := response.Msg.GetObjects()
	if name != "" && len(objects) == 0 {
		return nil, fmt.Errorf("%s: not found", lb.Ref(kind, name))
	}
	slices.SortFunc(objects, func(a, b *apiv1.Object) int { return strings.Compare(objectName(a), objectName(b)) })
	return objects, nil
}

// rawJSON returns a message in protobuf JSON, with every field present. protojson varies its white
// space on purpose.
func rawJSON(m proto.Message) (json.RawMessage, error) {
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return compact.Bytes(), nil
}

// rawJSONs applies rawJSON to a list.
func rawJSONs[M proto.Message](list []M) ([]json.RawMessage, error) {
	out := make([]json.RawMessage, len(list))
	for i, m := range list {
		text, err := rawJSON(m)
		if err != nil {
			return nil, err
		}
		out[i] = text
	}
	return out, nil
}
