package manager

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// Limits of Audit.
const (
	defaultAuditLimit = 1000
	// maxAuditBytes bounds a response: an entry of a large Apply has a line for each object.
	maxAuditBytes = 16 << 20
	// auditReaders is the number of pages read in parallel.
	auditReaders = 8
)

// newAuditJournal returns the journal of the audit log. Its pages are read from the store on
// request.
func newAuditJournal() *journal {
	return newJournal(dirAudit, func(p *page, value []byte) error {
		var stored apiv1.StoredAudit
		if err := proto.Unmarshal(value, &stored); err != nil {
			return err
		}
		shareOut(p, stored.GetEntries(), auditShareOf)
		return nil
	})
}

// auditEntry returns the entry of the call that ctx belongs to. The last argument has a line for
// each object, as in "services/web updated".
func (m *Manager) auditEntry(ctx context.Context, what ...string) *apiv1.AuditEntry {
	id := identityOf(ctx)
	e := &apiv1.AuditEntry{Time: timestamppb.New(m.o.Clock.Now()), Who: id.who(), Role: id.role, Tenant: id.tenant, From: id.from, What: what, Count: 1}
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok {
		e.Call = path.Base(call.Spec().Procedure)
	}
	return e
}

// auditOp returns the operation that stores the entry of a change in the change's own transaction.
// The entry's revision is that of the key.
func (t *term) auditOp(e *apiv1.AuditEntry) (store.Op, error) {
	value, err := proto.Marshal(&apiv1.StoredAudit{Entries: []*apiv1.AuditEntry{e}})
	return store.Put(pageKey(dirAudit, e.GetTime().AsTime(), t.epoch, t.m.pageNumber.Add(1)), value), err
}

// auditDone logs an entry that a transaction has stored.
func (m *Manager) auditDone(e *apiv1.AuditEntry, revision int64) {
	e.Revision = revision
	m.logAudit(e)
}

func (m *Manager) logAudit(e *apiv1.AuditEntry) {
	what := e.GetWhat()
	if more := len(what) - maxLogged; more > 0 {
		what = append(slices.Clone(what[:maxLogged]), fmt.Sprintf("and %d more", more))
	}
	args := []any{"who", e.GetWho(), "role", e.GetRole(), "from", e.GetFrom(), "call", e.GetCall()}
	if len(what) > 0 {
		args = append(args, "what", strings.Join(what, ", "))
	}
	if e.GetRevision() != 0 {
		args = append(args, "revision", e.GetRevision())
	}
	if e.GetRefused() == "" {
		m.o.Log.Info("audit", args...)
		return
	}
	m.o.Log.Warn("audit: refused", append(args, "refused", e.GetRefused(), "count", e.GetCount())...)
}

// badCertificate audits a TLS handshake that failed because the client's certificate is invalid.
// The name in the certificate is unverified.
func (m *Manager) badCertificate(from net.Addr, bad *tls.CertificateVerificationError) {
	why, invalid, stranger := bad.Err.Error(), x509.CertificateInvalidError{}, x509.UnknownAuthorityError{}
	switch {
	case errors.As(bad.Err, &invalid) && invalid.Reason == x509.Expired:
		// without the time, so that equal refusals are equal
		why = "it has expired, or is not valid yet"
	case errors.As(bad.Err, &stranger):
		why = "it is not of the cluster's CA"
	}
	said := ""
	if certs := bad.UnverifiedCertificates; len(certs) > 0 {
		said = certs[0].Subject.CommonName
	}
	if c, _ := m.view.caState(); c != nil && !c.Phase.Before(plan.CARetire) && len(bad.UnverifiedCertificates) > 0 && pki.SignedBy(bad.UnverifiedCertificates[0], c.former) {
		why = "it is of the CA that was replaced"
		if _, role := pki.Identity(bad.UnverifiedCertificates[0]); isNodeRole(role) {
			m.tokenNeeded(said)
		}
	}
	m.audited(&apiv1.AuditEntry{Who: identity{}.who(), From: from.String(), Call: callHandshake, Refused: fmt.Sprintf("certificate of %q: %s", said, why)})
}

// callHandshake is the call in audit entries of clients that were refused in the TLS handshake.
const callHandshake = "TLS"

// maxLogged bounds the objects in one line of the log.
const maxLogged = 20

// changesText returns a line for each object that was changed.
func changesText(changes []*apiv1.Change) (out []string) {
	for _, ch := range changes {
		if ch.GetAction() != apiv1.Change_ACTION_UNCHANGED {
			out = append(out, lb.Ref(lb.Kind(ch.GetKind()), ch.GetName())+" "+actionText(ch.GetAction()))
		}
	}
	return out
}

func actionText(a apiv1.Change_Action) string {
	return strings.ToLower(strings.TrimPrefix(a.String(), "ACTION_"))
}

// host returns an address without its port, because connections of one caller are not
// distinguished.
func host(addr string) string {
	h, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return h
}

// Audit implements the API.
func (a api) Audit(ctx context.Context, req *connect.Request[apiv1.AuditRequest]) (*connect.Response[apiv1.AuditResponse], error) {
	if since := req.Msg.GetSince(); since != nil && since.CheckValid() != nil {
		return nil, fault(invalid{[]lb.Violation{{Field: "since", Value: since.String(), Allowed: "must be a time"}}})
	}
	entries, err := a.m.readAudit(ctx, req.Msg)
	if err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(&apiv1.AuditResponse{Entries: entries}), nil
}

// readAudit returns the newest entries that match a request, oldest first.
func (m *Manager) readAudit(ctx context.Context, req *apiv1.AuditRequest) ([]*apiv1.AuditEntry, error) {
	var since = m.o.Clock.Now().Add(-m.o.AuditKeep)
	if req.GetSince() != nil {
		since = req.GetSince().AsTime()
	}
	limit := int(cmp.Or(req.GetLimit(), defaultAuditLimit))
	all, _, _ := m.view.audit.since(0, since)
	slices.Reverse(all)
	slices.SortStableFunc(all, func(a, b *page) int { return b.at.Compare(a.at) })
	if !req.GetRefused() {
		return m.newest(ctx, all, limit, func(*apiv1.AuditEntry) bool { return true })
	}
	all = slices.DeleteFunc(all, func(p *page) bool { return p.class != pageRefused })
	return m.newest(ctx, all, limit, func(e *apiv1.AuditEntry) bool { return e.GetRefused() != "" })
}

// newest reads pages, ordered from newest to oldest, until limit entries match or maxAuditBytes are
// read. It returns the entries oldest first.
func (m *Manager) newest(ctx context.Context, all []*page, limit int, wants func(*apiv1.AuditEntry) bool) ([]*apiv1.AuditEntry, error) {
	var out []*apiv1.AuditEntry
	bytes := int64(0)
	for some := range slices.Chunk(all, auditReaders) {
		for _, entries := range m.readPages(ctx, some) {
			if entries.err != nil {
				return nil, entries.err
			}
			bytes += entries.size
			if bytes > maxAuditBytes && len(out) > 0 {
				slices.Reverse(out)
				return out, nil
			}
			for _, e := range slices.Backward(entries.list) {
				if wants(e) && len(out) < limit {
					out = append(out, e)
				}
			}
		}
		if len(out) >= limit {
			break
		}
	}
	slices.Reverse(out)
	return out, nil
}

// auditPage is the entries of a page.
type auditPage struct {
	list []*apiv1.AuditEntry
	size int64
	err  error
}

// readPages reads pages in parallel. A page that was swept meanwhile is empty.
func (m *Manager) readPages(ctx context.Context, some []*page) []auditPage {
	out := make([]auditPage, len(some))
	var wg sync.WaitGroup
	for i, p := range some {
		wg.Go(func() { out[i] = m.readPage(ctx, p.key) })
	}
	wg.Wait()
	return out
}

func (m *Manager) readPage(ctx context.Context, key string) auditPage {
	kv, ok, _, err := m.o.Store.Get(ctx, key)
	if err != nil || !ok {
		return auditPage{err: err}
	}
	var stored apiv1.StoredAudit
	if err := proto.Unmarshal(kv.Value, &stored); err != nil {
		return auditPage{err: fmt.Errorf("read %s: %w", key, err)}
	}
	for _, e := range stored.GetEntries() {
		if e.GetRefused() == "" && e.GetRevision() == 0 {
			e.Revision = kv.ModRevision
		}
	}
	return auditPage{list: stored.GetEntries(), size: int64(len(kv.Value))}
}
