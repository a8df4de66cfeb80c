package manager

import (
	"cmp"
	"crypto/x509"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// clockSkew is how far the clocks of managers may be apart: a certificate that another member issued may be dated later
// than this one's now. Certificates after a revocation are dated later still, so that a wide margin shuts nobody out.
const clockSkew = time.Hour

// revocation is up to when the node's certificates must be refused so that none of those it has is good. The clock may
// have been put back since one was issued, and the last ones may be dated at an earlier revocation.
func (t *term) revocation(node string) time.Time {
	return later(later(t.m.o.Clock.Now().Add(clockSkew), t.issued), t.m.view.revokedBefore(node).Add(1))
}

// revoke refuses the certificates that the node has so far and drops its tokens: it needs a new token to come back.
func (w *write) revoke(node string, now time.Time) error {
	value, err := proto.Marshal(&apiv1.StoredRevocation{Node: node, Before: timestamppb.New(now)})
	if err != nil {
		return err
	}
	w.txn.Ops = append(w.txn.Ops, store.Put(dirRevoked+node, value))
	for _, id := range w.base.tokensOf(node) {
		w.txn.Ops = append(w.txn.Ops, store.Delete(dirTokens+id))
	}
	return nil
}

// revokedCert tells whether a node's certificate was issued before the node was deleted.
func (v *view) revokedCert(cert *x509.Certificate) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.revokedLocked(cert)
}

// revokedBefore is the time up to which the node's certificates are refused.
func (v *view) revokedBefore(node string) time.Time {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if r := v.revoked[node]; r != nil {
		return r.GetBefore().AsTime()
	}
	return time.Time{}
}

// revokedLocked knows nodes only: people may be called as a node is.
func (v *view) revokedLocked(cert *x509.Certificate) bool {
	name, role := pki.Identity(cert)
	r := v.revoked[name]
	return isNodeRole(role) && r != nil && !pki.IssuedAt(cert).After(r.GetBefore().AsTime())
}

func compareRefs(a, b ref) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
}
