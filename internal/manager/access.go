package manager

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/token"
)

// Lifetimes of access tokens and people's certificates, and the maximum number of both together. At
// 200 bytes each they take 2 MB in every manager.
const (
	defaultAccessTTL      = 24 * time.Hour
	defaultCertificateTTL = 30 * 24 * time.Hour
	maxAccessTTL          = 365 * 24 * time.Hour
	maxAccess             = 10_000
)

var accessID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// accessRoles are the roles that people and programs may have.
var accessRoles = []string{pki.RoleAdmin, pki.RoleTenant, pki.RoleViewer}

// CreateAccess implements the API.
func (a api) CreateAccess(ctx context.Context, req *connect.Request[apiv1.CreateAccessRequest]) (*connect.Response[apiv1.CreateAccessResponse], error) {
	ttl := defaultAccessTTL
	if d := req.Msg.GetTtl(); d != nil {
		ttl = d.AsDuration()
	}
	if faults := accessFaults(req.Msg, ttl); len(faults) > 0 {
		return nil, fault(invalid{faults})
	}
	t, made, err := a.m.createAccess(ctx, req.Msg, ttl)
	if err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(&apiv1.CreateAccessResponse{Token: t.String(), Access: made}), nil
}

// accessRequest holds the fields that requests for a token and for a certificate have in common.
type accessRequest interface {
	GetName() string
	GetRole() string
	GetTenant() string
	GetTtl() *durationpb.Duration
}

func accessFaults(req accessRequest, ttl time.Duration) []lb.Violation {
	var faults []lb.Violation
	if req.GetTtl().CheckValid() != nil && req.GetTtl() != nil || ttl <= 0 || ttl > maxAccessTTL {
		faults = append(faults, lb.Violation{Field: "ttl", Value: ttl.String(), Allowed: "must be longer than 0s and at most " + maxAccessTTL.String()})
	}
	if !nodeName.MatchString(req.GetName()) {
		faults = append(faults, lb.Violation{Field: "name", Value: req.GetName(), Allowed: allowedNodeName})
	}
	if !slices.Contains(accessRoles, req.GetRole()) {
		faults = append(faults, lb.Violation{Field: "role", Value: req.GetRole(), Allowed: "must be admin, tenant or viewer"})
	}
	switch {
	case req.GetRole() == pki.RoleTenant && !nodeName.MatchString(req.GetTenant()):
		faults = append(faults, lb.Violation{Field: "tenant", Value: req.GetTenant(), Allowed: allowedNodeName})
	case req.GetRole() != pki.RoleTenant && req.GetTenant() != "":
		faults = append(faults, lb.Violation{Field: "tenant", Value: req.GetTenant(), Allowed: "must be empty unless the role is tenant"})
	}
	return faults
}

// ListAccess implements the API.
func (a api) ListAccess(context.Context, *connect.Request[apiv1.ListAccessRequest]) (*connect.Response[apiv1.ListAccessResponse], error) {
	return connect.NewResponse(&apiv1.ListAccessResponse{Access: a.m.view.accessAt(a.m.o.Clock.Now())}), nil
}

// RevokeAccess implements the API.
func (a api) RevokeAccess(ctx context.Context, req *connect.Request[apiv1.RevokeAccessRequest]) (*connect.Response[apiv1.RevokeAccessResponse], error) {
	if kind := req.Msg.GetKind(); kind != "" {
		if err := a.m.revokeNamed(ctx, kind, req.Msg.GetId()); err != nil {
			return nil, err
		}
		return connect.NewResponse(&apiv1.RevokeAccessResponse{}), nil
	}
	// The error does not repeat the id, because the caller may have passed the whole token.
	if !accessID.MatchString(req.Msg.GetId()) {
		return nil, fault(invalid{[]lb.Violation{{Field: "id", Allowed: "must be 16 hexadecimal digits, as `shunt access list` shows them"}}})
	}
	if err := a.m.revokeAccess(ctx, req.Msg.GetId()); err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(&apiv1.RevokeAccessResponse{}), nil
}

// noAccess is the error of a revocation whose id does not exist.
type noAccess struct{ id string }

func (e noAccess) Error() string { return "access " + e.id + ": not found" }

// createAccess makes and stores an access token.
func (m *Manager) createAccess(ctx context.Context, req *apiv1.CreateAccessRequest, ttl time.Duration) (token.Access, *apiv1.Access, error) {
	random := make([]byte, token.RandomBytes)
	rand.Read(random)
	t := token.NewAccess(random)
	hash := t.SecretHash()
	made, err := m.storeAccess(ctx, func(now time.Time) (*apiv1.StoredAccess, error) {
		return &apiv1.StoredAccess{
			Id: t.ID, SecretSha256: hash[:], Name: req.GetName(), Role: req.GetRole(), Tenant: req.GetTenant(),
			Created: timestamppb.New(now), Expires: timestamppb.New(now.Add(ttl)),
		}, nil
	})
	return t, made, err
}

// storeAccess stores a new token or certificate, and deletes the expired ones in the same
// transaction.
func (m *Manager) storeAccess(ctx context.Context, create func(now time.Time) (*apiv1.StoredAccess, error)) (*apiv1.Access, error) {
	term, err := m.lead(ctx)
	if err != nil {
		return nil, err
	}
	term.writing.Lock()
	defer term.writing.Unlock()
	now := m.o.Clock.Now()
	stored, err := create(now)
	if err != nil {
		return nil, err
	}
	if err := term.refuse(ctx, func() error { return m.accessRefusal(stored, now) }); err != nil {
		return nil, err
	}
	value, err := proto.Marshal(stored)
	if err != nil {
		return nil, err
	}
	key := dirAccess + stored.GetId()
	txn := store.Txn{Compares: []store.Compare{{Key: key}}, Ops: []store.Op{store.Put(key, value)}}
	for _, id := range m.view.expiredAccess(now) {
		txn.Ops = append(txn.Ops, store.Delete(dirAccess+id))
	}
	entry := m.accessEntry(ctx, stored, "created")
	op, err := term.auditOp(entry)
	if err != nil {
		return nil, err
	}
	txn.Ops = append(txn.Ops, op)
	res, err := term.commit(ctx, txn)
	if err != nil {
		return nil, err
	}
	if !res.Succeeded {
		return nil, errors.New("the id is taken, try again")
	}
	m.auditDone(entry, res.Revision)
	return publicAccess(stored), term.wait(ctx, res.Revision)
}

// accessRefusal returns why a token or a certificate cannot be stored, or nil if it can.
func (m *Manager) accessRefusal(a *apiv1.StoredAccess, now time.Time) error {
	if tenant := a.GetTenant(); tenant != "" && !m.view.hasTenant(tenant) {
		return invalid{[]lb.Violation{{Field: "tenant", Value: tenant, Allowed: "must be the name of a Tenant, and there is none of this name: a service that names it is not enough, apply the Tenant first"}}}
	}
	if n := len(m.view.accessAt(now)); n >= maxAccess {
		return invalid{[]lb.Violation{{Field: "access tokens and certificates", Value: strconv.Itoa(n), Allowed: "must be at most " + strconv.Itoa(maxAccess) + ": revoke some"}}}
	}
	return nil
}

func (m *Manager) revokeAccess(ctx context.Context, id string) error {
	term, err := m.lead(ctx)
	if err != nil {
		return err
	}
	term.writing.Lock()
	defer term.writing.Unlock()
	var stored *apiv1.StoredAccess
	if err := term.refuse(ctx, func() error {
		if stored = m.view.access(id); stored == nil {
			return noAccess{id}
		}
		return nil
	}); err != nil {
		return err
	}
	entry := m.accessEntry(ctx, stored, "revoked")
	op, err := term.auditOp(entry)
	if err != nil {
		return err
	}
	res, err := term.commit(ctx, store.Txn{Ops: []store.Op{store.Delete(dirAccess + id), op}})
	if err != nil {
		return err
	}
	m.auditDone(entry, res.Revision)
	return term.wait(ctx, res.Revision)
}

// endAccess deletes the access tokens and certificates of a tenant that is deleted. Access created
// concurrently does not conflict with this write, and belongs to the next tenant with the same
// name.
func (w *write) endAccess(tenant string) {
	for _, a := range w.base.accessOf(tenant) {
		w.txn.Ops = append(w.txn.Ops, store.Delete(dirAccess+a.GetId()))
		w.ended = append(w.ended, accessText(a)+" revoked")
	}
}

// accessOf returns the access tokens and certificates of a tenant, ordered by id.
func (s *snapshot) accessOf(tenant string) []*apiv1.StoredAccess {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	var out []*apiv1.StoredAccess
	for _, id := range slices.Sorted(maps.Keys(s.v.accesses)) {
		if a := s.v.accesses[id]; a.GetTenant() == tenant {
			out = append(out, a)
		}
	}
	return out
}

// viaOf returns viaCertificate for a certificate and viaToken for a token.
func viaOf(a *apiv1.StoredAccess) string {
	if len(a.GetCertificateSha256()) > 0 {
		return viaCertificate
	}
	return viaToken
}

// accessText returns the name of a token or a certificate in the audit log.
func accessText(a *apiv1.StoredAccess) string {
	what := ""
	if viaOf(a) == viaCertificate {
		what = "certificate, "
	}
	return fmt.Sprintf("access/%s (%s%s, %s)", a.GetId(), what, a.GetName(), strings.TrimSpace(a.GetRole()+" "+a.GetTenant()))
}

// accessEntry returns the audit entry of an action on a token or a certificate.
func (m *Manager) accessEntry(ctx context.Context, a *apiv1.StoredAccess, did string) *apiv1.AuditEntry {
	return m.auditEntry(ctx, accessText(a)+" "+did)
}

// sweepAccess deletes expired tokens and certificates until ctx ends.
func (m *Manager) sweepAccess(ctx context.Context) {
	for {
		if err := m.dropExpiredAccess(ctx); err != nil && ctx.Err() == nil {
			m.o.Log.Warn("cannot forget expired access tokens", "error", err)
		}
		select {
		case <-m.o.Clock.After(sweepEvery):
		case <-ctx.Done():
			return
		}
	}
}

func (m *Manager) dropExpiredAccess(ctx context.Context) error {
	term, err := m.lead(ctx)
	if err != nil {
		return err
	}
	term.writing.Lock()
	defer term.writing.Unlock()
	var txn store.Txn
	for _, id := range m.view.expiredAccess(m.o.Clock.Now()) {
		txn.Ops = append(txn.Ops, store.Delete(dirAccess+id))
	}
	if len(txn.Ops) == 0 {
		return nil
	}
	res, err := term.commit(ctx, txn)
	if err != nil {
		return err
	}
	return term.wait(ctx, res.Revision)
}

// publicAccess returns a token or a certificate without its hashes.
func publicAccess(s *apiv1.StoredAccess) *apiv1.Access {
	return &apiv1.Access{Id: s.GetId(), Name: s.GetName(), Role: s.GetRole(), Tenant: s.GetTenant(), Created: s.GetCreated(), Expires: s.GetExpires(), Via: viaOf(s)}
}

// access returns the token or certificate with an id, or nil if there is none.
func (v *view) access(id string) *apiv1.StoredAccess {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.accesses[id]
}

// accessAt returns the tokens and certificates that have not expired, ordered by name and id.
func (v *view) accessAt(now time.Time) []*apiv1.Access {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var out []*apiv1.Access
	for _, s := range v.accesses {
		if s.GetExpires().AsTime().After(now) {
			out = append(out, publicAccess(s))
		}
	}
	slices.SortFunc(out, func(a, b *apiv1.Access) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Id, b.Id)) })
	return out
}

func (v *view) expiredAccess(now time.Time) []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var out []string
	for _, id := range slices.Sorted(maps.Keys(v.accesses)) {
		if !v.accesses[id].GetExpires().AsTime().After(now) {
			out = append(out, id)
		}
	}
	return out
}

// bearer returns the identity of an access token, or the cause of the refusal. The cause is for the
// audit log, not for the caller.
func (v *view) bearer(s string, now time.Time) (id identity, cause string) {
	t, err := token.ParseAccess(s)
	if err != nil {
		return identity{}, "not of the form of an access token"
	}
	stored := v.access(t.ID)
	switch {
	case !t.Matches(stored.GetSecretSha256()):
		if stored == nil {
			return identity{}, "unknown or revoked access token " + t.ID
		}
		return identity{}, "wrong secret for access token " + t.ID
	case !stored.GetExpires().AsTime().After(now):
		return identity{}, "expired access token " + t.ID + " of " + stored.GetName()
	}
	return identity{
		name: stored.GetName(), role: stored.GetRole(), tenant: stored.GetTenant(), via: viaToken, access: t.ID, expires: stored.GetExpires().AsTime(),
	}, ""
}
