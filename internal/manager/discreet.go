package manager

import (
	"errors"
	"regexp"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// reference matches the name of an object in messages, in lb.Ref's form.
var reference = regexp.MustCompile(`\b(services|policies|tenants|nodes)/([a-z0-9-]+)`)

// discreet removes from the faults of a write all information about objects that the tenant may not
// see: a clash reports that something is taken, but not by which object.
func (s *scope) discreet(req proto.Message, err error) error {
	var inv *connect.Error
	if !errors.As(err, &inv) || inv.Code() != connect.CodeInvalidArgument {
		return err
	}
	own := s.named(req)
	var faults []lb.Violation
	for _, d := range inv.Details() {
		msg, decode := d.Value()
		v, ok := msg.(*apiv1.Violation)
		if decode != nil || !ok {
			continue
		}
		faults = append(faults, s.discreetFault(own, lb.Violation{Field: v.GetField(), Value: v.GetValue(), Allowed: v.GetAllowed()}))
	}
	if len(faults) == 0 {
		return err
	}
	return fault(invalid{faults})
}

// discreetFault redacts one fault. Of another tenant's object it keeps at most the VIP, which the
// request contains too.
func (s *scope) discreetFault(own map[string]bool, v lb.Violation) lb.Violation {
	known := func(match string) bool { return own[match] || s.seesRef(match) }
	if object, at, ok := strings.Cut(v.Field, ": "); ok && reference.FindString(object) == object && !known(object) {
		if !strings.HasPrefix(at, "vip[") {
			return lb.Violation{Field: "objects", Allowed: "must not make others' objects wrong"}
		}
		return lb.Violation{Field: "vip", Value: v.Value, Allowed: "is taken"}
	}
	if strings.HasSuffix(v.Field, ": policy") && !known(lb.Ref(lb.KindPolicy, v.Value)) {
		v.Allowed = "must be the name of a Policy, and there is none of this name"
	}
	v.Allowed = reference.ReplaceAllStringFunc(v.Allowed, func(match string) string {
		if known(match) {
			return match
		}
		return "another one"
	})
	return v
}

// named returns the references of the objects in a request.
func (s *scope) named(req proto.Message) map[string]bool {
	own := map[string]bool{}
	if apply, ok := req.(*apiv1.ApplyRequest); ok {
		for _, o := range apply.GetObjects() {
			r := refOfObject(o)
			own[lb.Ref(r.kind, r.name)] = true
		}
	}
	return own
}

// seesRef reports whether the tenant may see the object that a message names.
func (s *scope) seesRef(match string) bool {
	plural, name, _ := strings.Cut(match, "/")
	s.view.mu.RLock()
	defer s.view.mu.RUnlock()
	for _, kind := range lb.Kinds {
		if r := s.view.records[ref{kind, name}]; r != nil && kind.Plural() == plural {
			return s.sees(r.filled())
		}
	}
	return false
}
