package manager

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// newFields are the fields of objects that came with a schema: those of the message from the number on. A manager of the schema
// before does not know them. Were they written while one is there, it would lead with plans that lack them.
var newFields = []struct {
	schema  int64
	message protoreflect.FullName
	from    protoreflect.FieldNumber
	// alone: the field, without those that follow it.
	alone bool
}{
	{schemaHealth, "shunt.v1.Health", 9, false}, // https and what follows: further kinds, several checks, what verdicts mean
	{schemaHealth, "shunt.v1.HTTPCheck", 3, false},
	{schemaHealth, "shunt.v1.TCPCheck", 1, false},
	{schemaHealth, "shunt.v1.Endpoint", 18, false}, // repairWindow, hostIdle, load
	{schemaHealth, "shunt.v1.Service", 5, true},    // snat: refused before
	{schemaHealth, "shunt.v1.Quotas", 5, false},    // snatPorts
	{schemaHealth, "shunt.v1.Network", 7, false},   // switches
	{schemaHealth, "shunt.v1.Node", 8, false},      // nat
	{schemaHealth, "shunt.v1.BGPPeer", 5, false},   // ttl_security, multihop
	{schemaHealth, "shunt.v1.Tenant", 5, false},    // dips, hosts, vips, shared
	{schemaHealth, "shunt.v1.Share", 1, false},
}

// newSince is the schema that a field came with; 0: all know it.
func newSince(fd protoreflect.FieldDescriptor) int64 {
	for _, n := range newFields {
		if n.message == fd.ContainingMessage().FullName() && (fd.Number() == n.from || fd.Number() > n.from && !n.alone) {
			return n.schema
		}
	}
	return 0
}

// newValues are values of fields that came with a schema: a manager of the schema before knows the field, and not what they mean.
var newValues = []struct {
	schema int64
	field  protoreflect.FullName
	values []string
}{
	{schemaHealth, "shunt.v1.Endpoint.protocol", []string{"quic"}},
	{schemaHealth, "shunt.v1.Endpoint.affinity", []string{lb.AffinityCookie}},
	{schemaHealth, "shunt.v1.Endpoint.path", []string{lb.PathNAT}},
	{schemaHealth, "shunt.v1.Endpoint.scheduler", []string{
		lb.SchedulerRandom, lb.SchedulerRoundRobin, lb.SchedulerWeightedRoundRobin, lb.SchedulerAdaptive, lb.SchedulerLeastConnections, lb.SchedulerP2C,
	}},
}

// valueSince is the schema that a value of a field came with; 0: all know it.
func valueSince(fd protoreflect.FieldDescriptor, v protoreflect.Value) int64 {
	for _, n := range newValues {
		if n.field == fd.FullName() && slices.Contains(n.values, v.String()) {
			return n.schema
		}
	}
	return 0
}

// newerFields visits what the message says that came after the schema, with its path and the schema that it came with. What is
// within such a field is not visited.
func newerFields(m protoreflect.Message, path string, schema int64, visit func(path string, since int64)) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + fd.JSONName()
		if since := newSince(fd); since > schema {
			visit(at, since)
			return true
		}
		if since := valueSince(fd, v); since > schema {
			visit(at+": "+v.String(), since)
			return true
		}
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				newerFields(v.List().Get(i).Message(), fmt.Sprintf("%s[%d].", at, i), schema, visit)
			}
		default:
			newerFields(v.Message(), at+".", schema, visit)
		}
		return true
	})
}

// newer are the faults of an object that says what not every manager knows. What the record said before may stay.
func (s *snapshot) newer(ref string, old *record, said proto.Message) (out []lb.Violation) {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	if s.v.schema >= Schema {
		return nil
	}
	var before []string
	if old != nil {
		newerFields(convert.Content(old.stored).ProtoReflect(), "", s.v.schema, func(path string, _ int64) { before = append(before, path) })
	}
	newerFields(said.ProtoReflect(), "", s.v.schema, func(path string, since int64) {
		if !slices.Contains(before, path) {
			out = append(out, lb.Violation{Field: ref + ": " + path, Allowed: s.v.waitsForLocked(since)})
		}
	})
	slices.SortFunc(out, func(a, b lb.Violation) int { return strings.Compare(a.Field, b.Field) })
	return out
}

// waitsForLocked tells why a field of the schema must wait.
func (v *view) waitsForLocked(since int64) string {
	text := fmt.Sprintf("needs schema %d of the state, which has %d until every manager is of a version that knows it", since, v.schema)
	var behind []string
	for name, s := range v.managers {
		if s.GetSchema() < since {
			behind = append(behind, fmt.Sprintf("%s of version %s does not", name, s.GetVersion()))
		}
	}
	if len(behind) == 0 {
		return text + ": `shunt member list` tells who is not up"
	}
	slices.Sort(behind)
	return text + ": " + strings.Join(behind, ", ")
}
