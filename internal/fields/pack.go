package fields

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
)

// Owner is one source and its fields, ordered, in stored form.
type Owner struct {
	Source string
	Fields []string
}

// Equal reports whether the stored forms are equal.
func (o Owner) Equal(p Owner) bool { return o.Source == p.Source && slices.Equal(o.Fields, p.Fields) }

// Set is a set of field paths.
type Set map[string]struct{}

// Owners holds the fields that each source set. Sources that set the same field set the same value.
type Owners map[string]Set

// of returns the sources that own a field, ordered.
func (o Owners) of(path string) []string {
	var out []string
	for source, set := range o {
		if _, ok := set[path]; ok {
			out = append(out, source)
		}
	}
	slices.Sort(out)
	return out
}

// Expand returns packed owners with every path.
func (s Schema) Expand(m proto.Message, packed []Owner) []Owner {
	if len(packed) == 1 && alone(packed, packed[0].Source) {
		var paths []string
		s.walk(m.ProtoReflect(), "", func(f Field) { paths = append(paths, f.Path) })
		slices.Sort(paths)
		return []Owner{{packed[0].Source, paths}}
	}
	owners := s.Unpack(m, packed)
	out := make([]Owner, 0, len(owners))
	for _, source := range slices.Sorted(maps.Keys(owners)) {
		out = append(out, Owner{source, slices.Sorted(maps.Keys(owners[source]))})
	}
	return out
}

// Everything means every field that is present, in the packed form of owners.
const Everything = "*"

// except marks a field that Everything does not include.
const except = "!"

// Pack returns owners in a short form: for the source with the most fields only those that it does
// not own, because a service with ten thousand backends has forty thousand fields, nearly all of
// one source.
func (s Schema) Pack(m proto.Message, owners Owners) []Owner {
	most := ""
	for _, source := range slices.Sorted(maps.Keys(owners)) {
		if most == "" || len(owners[source]) > len(owners[most]) {
			most = source
		}
	}
	var out []Owner
	for _, source := range slices.Sorted(maps.Keys(owners)) {
		set := owners[source]
		if source != most {
			out = append(out, Owner{source, slices.Sorted(maps.Keys(set))})
			continue
		}
		there, paths := Set{}, []string{Everything}
		s.walk(m.ProtoReflect(), "", func(f Field) {
			there[f.Path] = struct{}{}
			if _, ok := set[f.Path]; !ok {
				paths = append(paths, except+f.Path)
			}
		})
		for path := range set {
			if _, ok := there[path]; !ok {
				paths = append(paths, path)
			}
		}
		slices.Sort(paths[1:])
		out = append(out, Owner{source, paths})
	}
	return out
}

// Unpack parses the output of Pack and Expand.
func (s Schema) Unpack(m proto.Message, in []Owner) Owners {
	out := make(Owners, len(in))
	for _, o := range in {
		set := Set{}
		for _, path := range o.Fields {
			switch {
			case path == Everything:
				s.walk(m.ProtoReflect(), "", func(f Field) { set[f.Path] = struct{}{} })
			case strings.HasPrefix(path, except):
				delete(set, path[len(except):])
			default:
				set[path] = struct{}{}
			}
		}
		out[o.Source] = set
	}
	return out
}
