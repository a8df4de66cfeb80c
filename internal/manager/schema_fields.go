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

// newFields lists the fields of objects that a schema added: those of the message from the given
// number up. A manager of the previous schema ignores them. If they were written while such a
// manager runs, it could become leader and send plans without them.
var newFields = []struct {
	schema  int64
	message protoreflect.FullName
	from    protoreflect.FieldNumber
	// alone: only this field, not those with higher numbers.
	alone bool
}{
	// https and up: further kinds, several checks, settings for verdicts
	{schemaHealth, "shunt.v1.Health", 9, false},
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

// newSince returns the schema that added a field, or 0 if every schema has it.
func newSince(fd protoreflect.FieldDescriptor) int64 {
	for _, n := range newFields {
		if n.message == fd.ContainingMessage().FullName() && (fd.Number() == n.from || fd.Number() > n.from && !n.alone) {
			return n.schema
		}
	}
	return 0
}

// newValues lists the values of fields that a schema added. A manager of the previous schema has
// the field but does not support these values.
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

// valueSince returns the schema that added a value of a field, or 0 if every schema has it.
func valueSince(fd protoreflect.FieldDescriptor, v protoreflect.Value) int64 {
	for _, n := range newValues {
		if n.field == fd.FullName() && slices.Contains(n.values, v.String()) {
			return n.schema
		}
	}
	return 0
}

// newerFields calls visit for each field and value set in the message that a schema later than the
// given one added, with its path and that schema. It does not descend into such a field.
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

// newer returns violations for fields and values of an object that not every manager supports.
// Those already set in the stored record are allowed.
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

// waitsForLocked returns the reason why a field of the schema is not allowed yet.
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
