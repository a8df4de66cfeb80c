package lb

import "io"

// Parse reads strict YAML: any number of documents, one object each, with defaults filled in and validated by
// themselves. The error is an *Error with every fault and its place; then no object is returned.
func Parse(r io.Reader, filename string) ([]Object, error) { return nil, nil }

// Marshal writes objects as canonical YAML: every field with its default, documents separated by "---".
func Marshal(objects ...Object) []byte { return nil }
