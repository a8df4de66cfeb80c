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

// readDocuments reads the objects of files, of the YAML files in directories, and of "-", stdin. The faults of all of
// them are one error.
func readDocuments(ctx context.Context, stdin io.Reader, names []string, extent lb.Extent) ([]lb.Document, error) {
	if len(names) == 0 {
		return nil, usagef("-f FILE is missing, must be a file, a directory or - for standard input")
	}
	files, err := yamlFiles(names)
	if err != nil {
		return nil, err
	}
	var (
		docs   []lb.Document
		faults []string
		seen   = map[string]bool{}
	)
	for _, file := range files {
		found, err := readFile(ctx, stdin, file, extent)
		if ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			faults = append(faults, err.Error())
		}
		for _, d := range found {
			ref := lb.Ref(d.Object.Kind(), d.Object.ObjectName())
			if seen[ref] {
				faults = append(faults, ref+": must not be given twice")
			}
			seen[ref] = true
		}
		docs = append(docs, found...)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(faults, "\n"))
	}
	if len(docs) == 0 {
		return nil, fmt.Errorf("%s: no objects, must have at least one YAML document with a kind", strings.Join(names, ", "))
	}
	return docs, nil
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
func readFile(ctx context.Context, stdin io.Reader, name string, extent lb.Extent) ([]lb.Document, error) {
	type result struct {
		docs []lb.Document
		err  error
	}
	done := make(chan result, 1)
	go func() {
		docs, err := parseFile(stdin, name, extent)
		done <- result{docs, err}
	}()
	select {
	case r := <-done:
		return r.docs, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("read %s: %w", name, ctx.Err())
	}
}

func parseFile(stdin io.Reader, name string, extent lb.Extent) ([]lb.Document, error) {
	if name == "-" {
		return lb.ParseDocuments(stdin, "stdin", extent)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	defer file.Close()
	return lb.ParseDocuments(file, name, extent)
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
