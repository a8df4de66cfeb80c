package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// documents holds the objects of files and the positions of their fields.
type documents struct {
	all []lb.Document
	at  map[string]int // by lb.Ref
}

// readDocuments reads the objects of files, of the YAML files in directories, and of "-", stdin. It
// returns all their faults as one error.
func readDocuments(ctx context.Context, stdin io.Reader, names []string, extent lb.Extent) (*documents, error) {
	if len(names) == 0 {
		return nil, usagef("-f FILE is missing, must be a file, a directory or - for standard input")
	}
	files, err := yamlFiles(names)
	if err != nil {
		return nil, err
	}
	var (
		docs   = &documents{at: map[string]int{}}
		faults []string
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
			if first := docs.of(ref); first != nil {
				line, column := first.Place("")
				again := lb.Violation{Field: ref, Allowed: fmt.Sprintf("must not be given twice, first at %s:%d:%d", first.Filename, line, column)}
				faults = append(faults, placed(d, again))
				continue
			}
			docs.at[ref] = len(docs.all)
			docs.all = append(docs.all, d)
		}
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(faults, "\n"))
	}
	if len(docs.all) == 0 {
		return nil, fmt.Errorf("%s: no objects, must have at least one YAML document with a kind", strings.Join(names, ", "))
	}
	return docs, nil
}

// yamlFiles replaces each directory by its YAML files in order of name.
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

// readFile reads a file until ctx ends, because standard input may never end.
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

// of returns the document of an object, or nil.
func (ds *documents) of(ref string) *lb.Document {
	if i, ok := ds.at[ref]; ok {
		return &ds.all[i]
	}
	return nil
}

// locate adds the positions of the fields to the manager's faults, if the fields are in the
// documents.
func (ds *documents) locate(err error) error {
	var refused *lb.Error
	if !errors.As(err, &refused) {
		return err
	}
	lines := make([]string, len(refused.Violations))
	for i, v := range refused.Violations {
		lines[i] = v.String()
		ref, _, _ := strings.Cut(v.Field, ": ")
		if d := ds.of(ref); d != nil {
			lines[i] = placed(*d, v)
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

// placed returns a document's fault with its position. A path may name items by number, in document
// order, or by key.
func placed(d lb.Document, v lb.Violation) string {
	_, path, _ := strings.Cut(v.Field, ": ")
	if number, found := convert.Schema.Number(convert.Content(convert.ToObject(d.Object)), path); found {
		path = number
	}
	v.Line, v.Column = d.Place(path)
	return (&lb.Error{Filename: d.Filename, Violations: []lb.Violation{v}}).Error()
}
