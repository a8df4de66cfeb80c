package manager

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// maxCAWaits bounds the managers and nodes that RotateCA lists as those that a phase waits for.
const maxCAWaits = 100

// RotateCA implements the API.
func (a api) RotateCA(ctx context.Context, req *connect.Request[apiv1.RotateCARequest]) (*connect.Response[apiv1.RotateCAResponse], error) {
	if faults := a.m.caFaults(req.Msg); len(faults) > 0 {
		return nil, fault(invalid{faults})
	}
	out, err := a.m.rotateCA(ctx, req.Msg)
	if err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(out), nil
}

func (m *Manager) caFaults(req *apiv1.RotateCARequest) (faults []lb.Violation) {
	if t := plan.CAPhase(req.GetThrough()); t != "" && t != plan.CAIssue && t != plan.CARetire {
		faults = append(faults, lb.Violation{Field: "through", Value: string(t), Allowed: "must be issue or retire, or empty"})
	}
	for i, name := range req.GetWithout() {
		if _, ok := m.view.roleOf(name); !ok {
			faults = append(faults, lb.Violation{Field: fmt.Sprintf("without[%d]", i), Value: name, Allowed: "must be the name of a Node"})
		}
	}
	if csr := req.GetCsr(); len(csr) > 0 && (len(csr) > maxCSRBytes || pki.CheckRequest(csr) != nil) {
		faults = append(faults, lb.Violation{Field: "csr", Allowed: "must be a certificate request (PKCS #10, DER) of an ECDSA key, signed with it"})
	}
	return faults
}

// rotateCA begins a replacement of the CA, or advances the current one, and returns its progress.
func (m *Manager) rotateCA(ctx context.Context, req *apiv1.RotateCARequest) (*apiv1.RotateCAResponse, error) {
	c, _ := m.view.caState()
	if req.GetBegin() && !c.underWay() {
		if err := m.beginCA(ctx, req); err != nil {
			return nil, err
		}
	} else if len(req.GetWithout()) > 0 || req.GetThrough() != "" {
		if err := m.moveCA(ctx, req); err != nil {
			return nil, err
		}
	}
	c, _ = m.view.caState()
	out, err := m.caResponse(ctx, c)
	if err == nil && len(req.GetCsr()) > 0 {
		out.Certificate, err = m.certifyAnew(ctx, c, req.GetCsr())
	}
	return out, err
}

// errNoChange is the error of a request to advance a replacement when there is none.
var errNoChange = connect.NewError(connect.CodeFailedPrecondition, errors.New("the CA is not being replaced"))

// beginCA creates the next CA and stores the replacement in its first phase.
func (m *Manager) beginCA(ctx context.Context, req *apiv1.RotateCARequest) error {
	by := identityOf(ctx)
	if by.via == viaToken {
		return connect.NewError(connect.CodeFailedPrecondition, errors.New("access tokens end when the CA is replaced, this one too: it must be done with a certificate, such as that of the manager's admin.yaml"))
	}
	t, err := m.lead(ctx)
	if err != nil {
		return err
	}
	now := m.o.Clock.Now().Round(0).UTC()
	ca, err := pki.NewCA(m.o.Name, now)
	if err != nil {
		return err
	}
	c := &caChange{CAChange: plan.CAChange{Phase: plan.CATrust, Since: now, Through: plan.CATrust, Without: req.GetWithout()}, began: now, former: m.secrets.ca().Cert, next: ca.Cert}
	if err := m.caRefusal(ctx, c, req.GetForce()); err != nil {
		return err
	}
	storeKey := make([]byte, storeKeyBytes)
	rand.Read(storeKey)
	m.view.mu.RLock()
	members, mod := map[string][]byte{}, m.view.caMod
	if m.view.caChange.underWay() {
		m.view.mu.RUnlock()
		return errCAConflict // another call began one since this one was checked
	}
	for name, r := range m.view.managers {
		members[name] = r.GetPublicKey()
	}
	m.view.mu.RUnlock()
	facts, err := m.caFacts(ctx, c)
	if err != nil {
		return err
	}
	for name := range members {
		if !slices.ContainsFunc(facts.Managers, func(p plan.CAParty) bool { return p.Name == name }) {
			delete(members, name) // it was removed, and its registration has not lapsed yet
		}
	}
	if c.sealed, err = sealedFor(members, ca, storeKey); err != nil {
		return err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	if err := m.storeCA(ctx, t, c, mod, "replacement of the CA began"); err != nil {
		return err
	}
	m.managerEvent(m.o.Name, reasonCARotating, "the CA is replaced: phase %s, begun by %s", c.Phase, by.who())
	return nil
}

// caRefusal returns why a replacement may not begin, or nil if it may.
func (m *Manager) caRefusal(ctx context.Context, c *caChange, force bool) error {
	facts, err := m.caFacts(ctx, c)
	if err != nil {
		return err
	}
	var faults []lb.Violation
	for _, w := range c.Unable(facts) {
		on := "start it, or remove it for good (shunt member remove " + w.Name + "; with an outside etcd shunt access revoke managers/" + w.Name + ")"
		switch {
		case w.Reason == plan.CAOld:
			on = "upgrade it first"
		case w.Kind == plan.CAWaitNode:
			on = "bring it back, or leave it out (--without " + w.Name + "): then it needs a new join token afterwards"
		}
		faults = append(faults, lb.Violation{Field: w.Kind + "s/" + w.Name, Allowed: w.Reason + ": " + on})
	}
	if len(faults) > 0 {
		return conflict{faults}
	}
	if ending := m.view.accessAt(m.o.Clock.Now()); len(ending) > 0 && !force {
		var names []string
		for _, a := range ending {
			names = append(names, a.GetName())
		}
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("access tokens and certificates of people and programs end, %d: %s: must be confirmed (--yes)", len(names), fewNames(names)))
	}
	return nil
}

// moveCA stores the permissions of a request for the current replacement: the nodes left out, and
// the phase up to which it may advance.
func (m *Manager) moveCA(ctx context.Context, req *apiv1.RotateCARequest) error {
	t, err := m.lead(ctx)
	if err != nil {
		return err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	c, mod := m.view.caState()
	if !c.underWay() {
		return errNoChange
	}
	next, did := *c, []string(nil)
	for _, name := range req.GetWithout() {
		if !slices.Contains(next.Without, name) {
			next.Without = append(slices.Clone(next.Without), name)
			did = append(did, "nodes/"+name+" is left out")
		}
	}
	through := plan.CAPhase(req.GetThrough())
	if through == plan.CARetire && c.Phase == plan.CATrust {
		return connect.NewError(connect.CodeFailedPrecondition, errors.New("through: retire: must be issue in phase trust"))
	}
	if through != "" && c.Through.Before(through) {
		next.Through = through
		did = append(did, "phase "+string(through)+" may begin")
	}
	if len(did) == 0 {
		return nil
	}
	return m.storeCA(ctx, t, &next, mod, "replacement of the CA: "+strings.Join(did, ", "))
}

// storeCA stores a replacement that a caller began or advanced. t.writing is held.
func (m *Manager) storeCA(ctx context.Context, t *term, c *caChange, mod int64, did string) error {
	value, err := c.value()
	if err != nil {
		return err
	}
	entry := m.auditEntry(ctx, did)
	op, err := t.auditOp(entry)
	if err != nil {
		return err
	}
	res, err := t.commit(ctx, store.Txn{Compares: []store.Compare{{Key: keyCAChange, ModRevision: mod}}, Ops: []store.Op{store.Put(keyCAChange, value), op}})
	if err != nil {
		return err
	}
	if err := t.wait(ctx, res.Revision); err != nil {
		return err
	}
	if !res.Succeeded {
		return errCAConflict
	}
	m.auditDone(entry, res.Revision)
	return nil
}

// caResponse returns the progress of a replacement.
func (m *Manager) caResponse(ctx context.Context, c *caChange) (*apiv1.RotateCAResponse, error) {
	if c == nil {
		return &apiv1.RotateCAResponse{Ca: pki.BundlePEM(m.secrets.cas())}, nil
	}
	out := &apiv1.RotateCAResponse{
		Phase: string(c.Phase), Began: timestamppb.New(c.began), Since: timestamppb.New(c.Since), Without: c.Without, Through: string(c.Through),
		Former: certHash(c.former.Raw), Next: certHash(c.next.Raw),
	}
	cas, err := pki.ParseCAs(c.cas())
	if err != nil {
		return nil, err
	}
	out.Ca = pki.BundlePEM(cas)
	if !c.underWay() {
		return out, nil
	}
	facts, err := m.caFacts(ctx, c)
	if err != nil {
		return nil, err
	}
	waits := c.Waits(facts)
	out.Waiting = uint32(len(waits))
	for _, w := range waits[:min(len(waits), maxCAWaits)] {
		out.Waits = append(out.Waits, &apiv1.CAWait{Kind: w.Kind, Name: w.Name, Reason: w.Reason})
	}
	return out, nil
}

func certHash(der []byte) string {
	hash := sha256.Sum256(der)
	return hex.EncodeToString(hash[:])
}

// certifyAnew signs a certificate with the next CA for a caller with a certificate of the previous
// CA. It has the same name, role and tenant; a person's also ends at the same time.
func (m *Manager) certifyAnew(ctx context.Context, c *caChange, csr []byte) ([]byte, error) {
	id := identityOf(ctx)
	if c == nil || c.Phase != plan.CAIssue {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("csr: must come in phase issue"))
	}
	if id.via != viaCertificate {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("csr: must come with a certificate"))
	}
	if !bytes.Equal(m.secrets.ca().Cert.Raw, c.next.Raw) {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("csr: this manager does not sign with the new CA yet"))
	}
	if id.access != "" {
		cert, _, err := m.createCertificate(ctx, &apiv1.CreateCertificateRequest{Name: id.name, Role: id.role, Tenant: id.tenant, Csr: csr}, id.expires.Sub(m.o.Clock.Now()))
		if err != nil {
			return nil, err
		}
		return pki.PEM(cert), nil
	}
	t, err := m.lead(ctx)
	if err != nil {
		return nil, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	next := m.secrets.generationOf(c.next.Raw)
	if next == nil {
		return nil, errors.New("this manager does not have the new CA yet")
	}
	cert, err := next.ca.SignPerson(csr, pki.Person{Name: id.name, Role: id.role}, pki.AdminLifetime, m.o.Clock.Now())
	if err != nil {
		return nil, err
	}
	if err := t.audited(ctx, fmt.Sprintf("certificate of %s (role %s) by the new CA", id.name, id.role)); err != nil {
		return nil, err
	}
	return pki.PEM(cert), nil
}
