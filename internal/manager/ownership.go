package manager

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/fields"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// defaultSource owns the fields of requests without a source, and those stored before fields had
// owners.
const defaultSource = "apply"

var sourceForm = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

// opinion holds all fields of an object that one source sets.
type opinion struct {
	convert.Statement
	source string
	force  bool
	read   int64 // revision that the object must still have; 0: any
}

// parseOpinions returns the opinions in a request, one per object.
func parseOpinions(req *apiv1.ApplyRequest) ([]opinion, []lb.Violation) {
	source := cmp.Or(req.GetSource(), defaultSource)
	if !sourceForm.MatchString(source) {
		return nil, []lb.Violation{{Field: "source", Value: source, Allowed: "must be 1 to 63 of a-z, 0-9 and -"}}
	}
	var (
		out    []opinion
		faults []lb.Violation
		seen   = map[ref]bool{}
	)
	for i, o := range req.GetObjects() {
		said, wrong := convert.Said(o, i)
		wrong = append(wrong, unknownFields(fmt.Sprintf("objects[%d]: ", i), o.ProtoReflect())...)
		if faults = append(faults, wrong...); len(faults) >= maxFaults {
			break
		}
		if len(wrong) > 0 {
			continue
		}
		r := refOf(said.Object)
		if seen[r] {
			faults = append(faults, lb.Violation{Field: lb.Ref(r.kind, r.name), Allowed: "must not be given twice"})
		}
		seen[r] = true
		out = append(out, opinion{Statement: said, source: source, force: req.GetForce(), read: o.GetRevision()})
	}
	return out, faults
}

// conflict reports that a request sets fields to other values than their owners.
type conflict struct{ faults []lb.Violation }

func (e conflict) Error() string { return invalid(e).Error() }

// claims returns the conflicts of an object as violations.
func claims(r ref, conflicts []fields.Conflict) []lb.Violation {
	out := make([]lb.Violation, len(conflicts))
	for i, c := range conflicts {
		out[i] = lb.Violation{
			Field: lb.Ref(r.kind, r.name) + ": " + c.Wanted.Path, Value: c.Wanted.Text(),
			Allowed: fmt.Sprintf("must be %s, as %s says, which owns it; force takes it over", c.Present.Text(), strings.Join(c.Owners, " and ")),
		}
	}
	return out
}

// said returns the fields of a stored object that sources set, without defaults, and their owners,
// packed. Of an object stored before fields had owners it returns the fields that differ from the
// defaults.
func (r *record) said() (proto.Message, []fields.Owner) {
	content, owners := convert.Content(r.stored), convert.FromOwners(r.stored.GetOwners())
	if len(owners) > 0 {
		return content, owners
	}
	if essential, faults := convert.Essential(r.stored); len(faults) == 0 {
		content = essential
	}
	return content, []fields.Owner{{Source: defaultSource, Fields: []string{fields.Everything}}}
}

// shown returns the object as all callers may read it, with its defaults and every owner.
func (r *record) shown() *apiv1.Object { return r.describe(r.filled()) }

// filled returns the object of the API with its defaults.
func (r *record) filled() *apiv1.Object { return convert.ToObject(r.obj) }

// describe adds the revision, the generation and the owners to the object of the API.
func (r *record) describe(out *apiv1.Object) *apiv1.Object {
	content, owners := r.said()
	out.Revision, out.Generation = r.stored.GetRevision(), r.stored.GetGeneration()
	out.Owners = convert.ToOwners(convert.Schema.Expand(content, owners))
	return out
}

// apply puts all opinions. It returns the faults in all of them as one error.
func (w *write) apply(opinions []opinion) error {
	var faults, claimed []lb.Violation
	for _, op := range opinions {
		wrong, conflicts, err := w.put(op)
		if err != nil {
			return err
		}
		faults, claimed = append(faults, wrong...), append(claimed, claims(refOf(op.Object), conflicts)...)
	}
	switch {
	case len(faults) > 0:
		return invalid{faults}
	case len(claimed) > 0:
		return conflict{claimed}
	}
	return nil
}

// put adds or changes an object. It puts nothing if there are faults or conflicts.
func (w *write) put(op opinion) ([]lb.Violation, []fields.Conflict, error) {
	r := refOf(op.Object)
	old := w.base.record(r)
	if !w.by.ownsRecord(old) {
		// This precedes any result that reveals the object.
		if err := w.by.mayPut(old, op.Object); err != nil {
			return nil, nil, err
		}
	}
	if present := old.revision(); op.read != 0 && op.read != present {
		return nil, nil, stale{r, op.read, present}
	}
	ch := &apiv1.Change{Kind: string(r.kind), Name: r.name, Action: apiv1.Change_ACTION_CREATED}
	present, owners := op.Content.ProtoReflect().New().Interface(), []fields.Owner(nil)
	if old != nil {
		present, owners = old.said()
		ch.Before, ch.Action = old.shown(), apiv1.Change_ACTION_UPDATED
	}
	content, owned, conflicts := convert.Schema.Apply(present, owners, op.Content, op.source, op.force)
	if len(conflicts) > 0 {
		return nil, conflicts, nil
	}
	// A Tenant belongs to the operator: role tenant may repeat its content, and owns none of it.
	said := w.by.role != pki.RoleTenant || r.kind != lb.KindTenant
	if old != nil && (!said || slices.EqualFunc(owned, owners, fields.Owner.Equal)) && proto.Equal(content, present) {
		ch.Action, ch.After = apiv1.Change_ACTION_UNCHANGED, ch.Before
		w.changes = append(w.changes, ch)
		return nil, nil, nil
	}
	next, full := &record{obj: op.Object, stored: convert.WithContent(content)}, op.Full
	if content != op.Content {
		var faults []lb.Violation
		if next.obj, faults = convert.FromObject(next.stored, 0); len(faults) > 0 {
			return faults, nil, nil
		}
		full = convert.ToObject(next.obj)
		w.merged[lb.Ref(r.kind, r.name)] = merged{whole: convert.Content(full), said: convert.Content(op.Full)}
	}
	if faults := lb.Validate(next.obj); len(faults) > 0 {
		return w.asSaid(faults), nil, nil
	}
	if faults := w.base.newer(lb.Ref(r.kind, r.name), old, content); len(faults) > 0 {
		return w.asSaid(faults), nil, nil
	}
	if err := w.by.mayPut(old, next.obj); err != nil {
		return nil, nil, err
	}
	next.stored.Generation, next.stored.Owners = old.generation()+1, convert.ToOwners(owned)
	ch.After = next.describe(full)
	w.changes = append(w.changes, ch)
	return nil, nil, w.store(r, old, next)
}

// merged holds an object merged from several sources, and the part in the request. Both have
// defaults.
type merged struct{ whole, said proto.Message }

// asSaid returns the faults with paths that use the item numbers of the request. Items that are not
// in it are named by their keys.
func (w *write) asSaid(faults []lb.Violation) []lb.Violation {
	out := slices.Clone(faults)
	for i, f := range out {
		ref, path, _ := strings.Cut(f.Field, ": ")
		m, ok := w.merged[ref]
		if !ok {
			continue
		}
		name := convert.Schema.Name(m.whole, path)
		if number, found := convert.Schema.Number(m.said, name); found {
			name = number
		}
		out[i].Field = ref + ": " + name
	}
	return out
}

// store adds the object to the transaction.
func (w *write) store(r ref, old, next *record) error {
	value, err := proto.Marshal(next.stored)
	if err != nil {
		return fmt.Errorf("%s: %w", lb.Ref(r.kind, r.name), err)
	}
	if old != nil {
		w.touch(old.obj)
	}
	w.edited[r] = next.obj
	w.hold(old, next.obj, len(value))
	w.touch(next.obj)
	w.expect(r.key(), old)
	w.txn.Ops = append(w.txn.Ops, store.Put(r.key(), value))
	return nil
}
