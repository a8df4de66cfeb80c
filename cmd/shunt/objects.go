package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// violationText is a violation on one line.
func violationText(v *apiv1.Violation) string {
	return lb.Violation{Field: v.GetField(), Value: v.GetValue(), Allowed: v.GetAllowed()}.String()
}

// readObjects reads and validates the objects of files, of the YAML files in directories, and of "-", stdin. The faults
// of all of them are one error.
func readObjects(ctx context.Context, stdin io.Reader, names []string) ([]lb.Object, error) {
	if len(names) == 0 {
		return nil, usagef("-f FILE is missing, must be a file, a directory or - for standard input")
	}
	files, err := yamlFiles(names)
	if err != nil {
		return nil, err
	}
	var (
		objects []lb.Object
		faults  []string
	)
	for _, file := range files {
		found, err := readFile(ctx, stdin, file)
		if ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			faults = append(faults, err.Error())
		}
		objects = append(objects, found...)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(faults, "\n"))
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("%s: no objects, must have at least one YAML document with a kind", strings.Join(names, ", "))
	}
	if twice := lb.Validate(objects...); len(twice) > 0 {
		return nil, &lb.Error{Violations: twice}
	}
	return objects, nil
}

// yamlFiles puts the YAML files of directories, in order of name, in the place of these.
func yamlFiles(names []string) ([]string, error) {
	var files []string
	for _, name := range names {
		info, err := os.Stat(name)
		if name == "-" || err == nil && !info.IsDir() {
			files = append(files, name)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read objects: %w", err)
		}
		entries, err := os.ReadDir(name)
		if err != nil {
			return nil, fmt.Errorf("read objects: %w", err)
		}
		for _, entry := range entries {
			if ext := filepath.Ext(entry.Name()); !entry.IsDir() && (ext == ".yaml" || ext == ".yml") {
				files = append(files, filepath.Join(name, entry.Name()))
			}
		}
	}
	return files, nil
}

// readFile reads until ctx ends: nobody may ever write to standard input.
func readFile(ctx context.Context, stdin io.Reader, name string) ([]lb.Object, error) {
	type result struct {
		objects []lb.Object
		err     error
	}
	done := make(chan result, 1)
	go func() {
		objects, err := parseFile(stdin, name)
		done <- result{objects, err}
	}()
	select {
	case r := <-done:
		return r.objects, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("read %s: %w", name, ctx.Err())
	}
}

func parseFile(stdin io.Reader, name string) ([]lb.Object, error) {
	if name == "-" {
		return lb.Parse(stdin, "stdin")
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	defer file.Close()
	return lb.Parse(file, name)
}

// wireObjects writes objects for the API.
func wireObjects(objects []lb.Object) []*apiv1.Object {
	out := make([]*apiv1.Object, len(objects))
	for i, o := range objects {
		out[i] = convert.ToObject(o)
	}
	return out
}

// domainObject reads an object of the API; nil stays nil.
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

// objectYAML is an object of the API in canonical YAML; nothing for nil.
func objectYAML(o *apiv1.Object) (string, error) {
	object, err := domainObject(o)
	if err != nil || object == nil {
		return "", err
	}
	return string(lb.Marshal(object)), nil
}

// fetch reads objects of a kind, in order of name. Without name it reads all.
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

// rawJSON is a message in the JSON of protobuf, every field present. protojson varies its white space on purpose.
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

// rawJSONs is rawJSON of a list.
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
