package fields_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/fields"
)

// words is the content that one source set: a value for each path, named or held for an item.
type words map[string]string

const (
	named = "named"
	held  = "held"
)

// oracle keeps the content of every source as set. The object is their union.
type oracle map[string]words

// itemsOf returns the paths of the items that contain a path, outermost first, including itself if
// it is one.
func itemsOf(path string) []string {
	var out []string
	depth := 0
	for i, c := range path {
		switch c {
		case '[':
			depth++
		case ']':
			if depth--; depth == 0 {
				out = append(out, path[:i+1])
			}
		}
	}
	return out
}

// mark marks each item as held or not: a backend with its host, an endpoint with such a backend.
func (w words) mark() words {
	out := maps.Clone(w)
	for item := range w {
		if !strings.HasSuffix(item, "]") {
			continue
		}
		out[item] = named
		for path := range w {
			if strings.HasPrefix(path, item+".") && strings.HasSuffix(path, "].host") {
				out[item] = held
			}
		}
	}
	return out
}

// apply returns the paths in conflict; without any, or with force, the source's values are set.
func (o oracle) apply(source string, said words, force bool) []string {
	var conflicts []string
	said = said.mark()
	for path, value := range said {
		if strings.HasSuffix(path, "]") {
			continue
		}
		for other, theirs := range o {
			if was, ok := theirs[path]; ok && other != source && was != value && !slices.Contains(conflicts, path) {
				conflicts = append(conflicts, path)
			}
		}
	}
	slices.Sort(conflicts)
	if len(conflicts) > 0 && !force {
		return conflicts
	}
	for other, theirs := range o {
		for _, path := range conflicts {
			if other != source {
				delete(theirs, path)
			}
		}
	}
	o[source] = said
	for _, theirs := range o {
		maps.DeleteFunc(theirs, func(path, _ string) bool {
			return slices.ContainsFunc(itemsOf(path), func(item string) bool { return !o.held(item) && said[item] == "" })
		})
	}
	return nil
}

func (o oracle) held(item string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(o)), func(w words) bool { return w[item] == held })
}

// all returns the object, and owned the owners of each field; items are owned by their holders.
func (o oracle) all() (out words, owned map[string][]string) {
	out, owned = words{}, map[string][]string{}
	for source, theirs := range o {
		for path, value := range theirs {
			if value != named {
				owned[source] = append(owned[source], path)
			}
			if value == named || value == held {
				value = ""
			}
			out[path] = value
		}
		slices.Sort(owned[source])
	}
	return out, owned
}

var ports = []string{"80", "443"}

// drawService draws a source's content of a service, with complete items only or also partial ones,
// and records it independently. With at most two values for each field, conflicts and agreement are
// both likely.
func drawService(rt *rapid.T, label string, whole bool) (*apiv1.Service, words) {
	s, w := &apiv1.Service{Name: "web"}, words{}
	says := func(what string) bool { return rapid.IntRange(0, 3).Draw(rt, label+" "+what) == 0 }
	one := func(what string) int { return rapid.IntRange(1, 2).Draw(rt, label+" which "+what) }
	if says("tenant") {
		s.Tenant = fmt.Sprintf("t%d", one("tenant"))
		w["tenant"] = s.Tenant
	}
	if says("vip") {
		s.Vip = []string{"203.0.113.10", "2001:db8:f::10"}[:one("vip")]
		w["vip"] = strings.Join(s.Vip, ", ")
	}
	if says("limits") {
		s.Limits = &apiv1.Limits{}
		if says("packets") {
			s.Limits.Packets = uint64(one("packets"))
			w["limits.packets"] = fmt.Sprint(s.Limits.Packets)
		} else {
			w["limits"] = ""
		}
	}
	for _, port := range rapid.SliceOfNDistinct(rapid.SampledFrom(ports), 0, 2, rapid.ID[string]).Draw(rt, label+" ports") {
		ep := &apiv1.Endpoint{Protocol: "tcp", Port: port}
		path := "endpoints[tcp/" + port + "]"
		w[path] = ""
		if says("interval") {
			ep.Health = &apiv1.Health{Interval: durationpb.New(time.Duration(one("interval")) * time.Second)}
			w[path+".health.interval"] = ep.Health.Interval.AsDuration().String()
		}
		least := 0
		if whole {
			least = 1
		}
		for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(1, 3), least, 3, rapid.ID[int]).Draw(rt, label+" backends") {
			b := &apiv1.Backend{Dip: []string{fmt.Sprintf("10.20.%d.11", i)}, Port: 8080}
			at := fmt.Sprintf("%s.backends[10.20.%d.11:8080]", path, i)
			if i == 3 {
				b.Dip = append(b.Dip, "2001:db8::3")
				at = path + ".backends[10.20.3.11,[2001:db8::3]:8080]"
			}
			w[at] = ""
			if whole || !says("no host") {
				b.Host = fmt.Sprintf("10.20.%d.1", one("host"))
				w[at+".host"] = b.Host
			}
			if says("weight") {
				b.Weight = proto.Uint32(uint32(one("weight") - 1))
				w[at+".weight"] = fmt.Sprint(b.GetWeight())
			}
			if says("drain") {
				b.Drain = true
				w[at+".drain"] = "true"
			}
			ep.Backends = append(ep.Backends, b)
		}
		s.Endpoints = append(s.Endpoints, ep)
	}
	return s, w
}

// wordsOf returns the content of a message. An empty message that one source owns and others filled
// is not a field.
func wordsOf(m proto.Message) words {
	out := words{}
	for _, f := range convert.Schema.List(m) {
		out[f.Path] = f.Text()
	}
	return out
}

// state is one object as stored by the package under test.
type state struct {
	content proto.Message
	owners  []fields.Owner
}

func (st *state) apply(source string, said proto.Message, force bool) []fields.Conflict {
	content, owners, conflicts := convert.Schema.Apply(st.content, st.owners, said, source, force)
	if len(conflicts) == 0 {
		st.content, st.owners = content, owners
	}
	return conflicts
}

func (st *state) expanded() map[string][]string {
	out := map[string][]string{}
	for _, o := range convert.Schema.Expand(st.content, st.owners) {
		out[o.Source] = o.Fields
	}
	return out
}

// TestMergeAsOracle: for any content of sources the object is the union of it, and applying it
// twice changes nothing.
func TestMergeAsOracle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		st, o := &state{content: &apiv1.Service{Name: "web"}}, oracle{}
		for step := range rapid.IntRange(1, 8).Draw(rt, "steps") {
			source := rapid.SampledFrom([]string{"apply", "drain", "ops"}).Draw(rt, "source")
			said, w := drawService(rt, fmt.Sprintf("%d %s", step, source), false)
			force := rapid.Bool().Draw(rt, "force")
			before := proto.CloneOf(st.content.(*apiv1.Service))
			var conflicts []string
			for _, c := range st.apply(source, said, force) {
				conflicts = append(conflicts, c.Wanted.Path)
				if len(c.Owners) == 0 || slices.Contains(c.Owners, source) {
					rt.Fatalf("conflict with %v", c.Owners)
				}
			}
			slices.Sort(conflicts)
			if want := o.apply(source, w, force); !slices.Equal(conflicts, want) {
				rt.Fatalf("conflicts %q, want %q", conflicts, want)
			}
			if len(conflicts) > 0 {
				if !proto.Equal(before, st.content) {
					rt.Fatalf("a refused apply changed the object: %v", st.content)
				}
				continue
			}
			o.check(rt, st)
			again := *st
			if c := again.apply(source, said, force); len(c) > 0 || !proto.Equal(again.content, st.content) || !slices.EqualFunc(again.owners, st.owners, fields.Owner.Equal) {
				rt.Fatalf("a second time: %v, owners %v, conflicts %v", again.content, again.owners, c)
			}
			if back := convert.Schema.Pack(st.content, convert.Schema.Unpack(st.content, convert.Schema.Expand(st.content, st.owners))); !slices.EqualFunc(back, st.owners, fields.Owner.Equal) {
				rt.Fatalf("owners %v, packed afresh %v", st.owners, back)
			}
		}
	})
}

// check compares content and owners.
func (o oracle) check(rt *rapid.T, st *state) {
	want, owned := o.all()
	got := wordsOf(st.content)
	if want["limits.packets"] != "" {
		delete(want, "limits")
	}
	if !maps.Equal(got, want) {
		rt.Fatalf("content %v, want %v", got, want)
	}
	maps.DeleteFunc(owned, func(_ string, paths []string) bool { return len(paths) == 0 })
	if !maps.EqualFunc(st.expanded(), owned, slices.Equal[[]string]) {
		rt.Fatalf("owners %v, want %v", st.expanded(), owned)
	}
}

// TestOrderOfSources: sources without conflicts, with complete items, may apply in any order.
func TestOrderOfSources(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type part struct {
			source string
			said   *apiv1.Service
		}
		var parts []part
		together := words{}
		for _, source := range []string{"apply", "drain", "ops", "team-2"} {
			said, mine := drawService(rt, source, true)
			agrees := true
			for path, value := range mine {
				other, both := together[path]
				agrees = agrees && (!both || other == value)
			}
			if agrees {
				maps.Copy(together, mine)
				parts = append(parts, part{source, said})
			}
		}
		run := func(order []part) (words, map[string][]string) {
			st := &state{content: &apiv1.Service{Name: "web"}}
			for _, p := range order {
				if c := st.apply(p.source, p.said, false); len(c) > 0 {
					rt.Fatalf("%s: conflicts %v", p.source, c)
				}
			}
			return wordsOf(st.content), st.expanded()
		}
		content, owners := run(parts)
		otherContent, otherOwners := run(rapid.Permutation(parts).Draw(rt, "order"))
		if !maps.Equal(content, otherContent) || !maps.EqualFunc(owners, otherOwners, slices.Equal[[]string]) {
			rt.Fatalf("content %v, in another order %v; owners %v and %v", content, otherContent, owners, otherOwners)
		}
	})
}
