package manager

import (
	"crypto/x509"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// caChange is the stored state of a replacement of the CA. It is never modified.
type caChange struct {
	plan.CAChange
	began, issued time.Time
	former, next  *x509.Certificate
	// sealed holds the next secrets, sealed for each manager.
	sealed map[string][]byte
}

// underWay reports whether a replacement has begun and not ended.
func (c *caChange) underWay() bool { return c != nil && c.Phase != plan.CADone }

// cas returns the CAs that a node accepts, first the one that shall sign its certificate, or nil if
// the CA was never replaced.
func (c *caChange) cas() [][]byte {
	switch {
	case c == nil:
		return nil
	case c.Phase == plan.CATrust:
		return [][]byte{c.former.Raw, c.next.Raw}
	case c.Phase == plan.CAIssue:
		return [][]byte{c.next.Raw, c.former.Raw}
	}
	return [][]byte{c.next.Raw}
}

// value returns the change encoded for the store.
func (c *caChange) value() ([]byte, error) {
	out := &apiv1.StoredCAChange{
		Phase: string(c.Phase), Began: timestamppb.New(c.began), Since: timestamppb.New(c.Since), Former: c.former.Raw, Next: c.next.Raw, Sealed: c.sealed,
		Without: c.Without, Turn: c.Turn, Through: string(c.Through),
	}
	if !c.issued.IsZero() {
		out.Issued = timestamppb.New(c.issued)
	}
	return proto.Marshal(out)
}

// parseCAChange decodes the output of value.
func parseCAChange(value []byte) (*caChange, error) {
	var s apiv1.StoredCAChange
	if err := proto.Unmarshal(value, &s); err != nil {
		return nil, err
	}
	cas, err := pki.ParseCAs([][]byte{s.GetFormer(), s.GetNext()})
	if err != nil {
		return nil, err
	}
	c := &caChange{
		CAChange: plan.CAChange{Phase: plan.CAPhase(s.GetPhase()), Since: s.GetSince().AsTime(), Turn: s.GetTurn(), Through: plan.CAPhase(s.GetThrough()), Without: s.GetWithout()},
		began:    s.GetBegan().AsTime(), former: cas[0], next: cas[1], sealed: s.GetSealed(),
	}
	if s.GetIssued() != nil {
		c.issued = s.GetIssued().AsTime()
	}
	if !c.Phase.Known() {
		return nil, fmt.Errorf("phase %q: is not known to this build", c.Phase)
	}
	return c, nil
}

// foldCAChangeLocked applies a stored step of a replacement of the CA to the view.
func (v *view) foldCAChangeLocked(ev store.Event, c *change) error {
	c.surroundings, c.ca = true, true
	if ev.Deleted {
		v.caChange, v.caMod = nil, 0
		return nil
	}
	parsed, err := parseCAChange(ev.KV.Value)
	if err != nil {
		return err
	}
	v.caChange, v.caMod = parsed, ev.KV.ModRevision
	return nil
}

// caState returns the last replacement of the CA and the revision of its key.
func (v *view) caState() (*caChange, int64) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.caChange, v.caMod
}

// caQuiet returns an error while there are two CAs, for calls that return or store secrets of one
// CA.
func (v *view) caQuiet(to string) error {
	if c, _ := v.caState(); c.underWay() {
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("cannot %s while the CA is replaced (phase %s): see shunt rotate ca --status", to, c.Phase))
	}
	return nil
}
