package fields

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Name converts a path with item numbers, "endpoints[0].port", to one with their keys in m. Parts
// that are not in m stay unchanged.
func (s Schema) Name(m proto.Message, path string) string {
	out, _ := s.translate(m.ProtoReflect(), path, func(_ Item, list protoreflect.List, rest string) (int, string) {
		digits, rest, _ := strings.Cut(rest, "]")
		i, err := strconv.Atoi(digits)
		if err != nil || i < 0 || i >= list.Len() {
			return -1, ""
		}
		return i, rest
	}, naturally)
	return out
}

// Number converts a path with keys to one with the numbers of the items in m; found reports whether
// all exist.
func (s Schema) Number(m proto.Message, path string) (out string, found bool) {
	return s.translate(m.ProtoReflect(), path, func(it Item, list protoreflect.List, rest string) (int, string) {
		for i := range list.Len() {
			if after, ok := strings.CutPrefix(rest, it.Text(list.Get(i).Message())+"]"); ok {
				return i, after
			}
		}
		return -1, ""
	}, byNumber)
}

// translate follows a path. find gets the text after "[", and returns an item's number and the text
// after its bracket, -1 for a missing item.
func (s Schema) translate(
	m protoreflect.Message, path string, find func(it Item, list protoreflect.List, rest string) (int, string),
	write func(Item, protoreflect.Message, int) string,
) (out string, found bool) {
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		return path, true
	}
	fd := m.Descriptor().Fields().ByJSONName(path[:end])
	switch {
	case fd == nil || s.shape(fd) == leaf:
		return path, true
	case s.shape(fd) == message && path[end] == '.':
		rest, found := s.translate(m.Get(fd).Message(), path[end+1:], find, write)
		return path[:end+1] + rest, found
	case s.shape(fd) != items || path[end] != '[':
		return path, true
	}
	list, it := m.Get(fd).List(), s.item(fd)
	i, rest := find(it, list, path[end+1:])
	if i < 0 {
		return path, false
	}
	one := list.Get(i).Message()
	here := at(path[:end], write(it, one, i))
	if below, ok := strings.CutPrefix(rest, "."); ok {
		below, found = s.translate(one, below, find, write)
		return here + "." + below, found
	}
	return here + rest, true
}
