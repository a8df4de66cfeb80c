package fields

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
)

// Owner is one source and its fields, ordered, as they are written down.
type Owner struct {
	Source string
	Fields []string
}

// Equal tells whether the same is written down.
func (o Owner) Equal(p Owner) bool { return o.Source == p.Source && slices.Equal(o.Fields, p.Fields) }

// Set is fields by their paths.
type Set map[string]struct{}

// Owners are the fields that each source said. Of a field that several said, all said the same.
type Owners map[string]Set

// of lists the sources that own a field, ordered.
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

// Expand writes packed owners with every path.
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

// Everything stands for every field that is there, in the short form of owners.
const Everything = "*"

// except marks a field that Everything does not hold.
const except = "!"

// Pack writes owners short: of the source with the most fields only what it does not own. A service with ten thousand
// backends has forty thousand fields, nearly all of one source.
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

// Unpack reads what Pack and Expand write.
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
