package manager

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// clockSkew is the maximum difference of the clocks of managers: a certificate that another member
// issued may be dated later than this one's present time. Certificates after a revocation are dated
// later still, so that a wide margin excludes no node.
const clockSkew = time.Hour

// revocation returns the time up to which the node's certificates must be refused so that none of
// its present ones is valid. The clock may have been set back since one was issued, and the last
// ones may be dated at an earlier revocation.
func (t *term) revocation(node string) time.Time {
	return later(later(t.m.o.Clock.Now().Add(clockSkew), t.issued), t.m.view.revokedBefore(node).Add(1))
}

// revoke refuses the node's present certificates and deletes its tokens, so that it needs a new
// token to return.
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

// revokedCert reports whether a certificate of a node or a manager was revoked.
func (v *view) revokedCert(cert *x509.Certificate) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.revokedLocked(cert)
}

// revokedBefore returns the time up to which the node's certificates are refused.
func (v *view) revokedBefore(node string) time.Time {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if r := v.revoked[node]; r != nil {
		return r.GetBefore().AsTime()
	}
	return time.Time{}
}

// managerRevocation returns the name of a manager's revocation below dirRevoked. That of a node is
// its name, which has no slash.
func managerRevocation(name string) string { return "managers/" + name }

// admitKey returns the change that excludes a key from the revocation of a manager's name; none if
// the name was not revoked.
func (v *view) admitKey(name string, key []byte) ([]store.Op, error) {
	v.mu.RLock()
	r := v.revoked[managerRevocation(name)]
	v.mu.RUnlock()
	if r == nil || containsKey(r.GetAdmitted(), key) {
		return nil, nil
	}
	admitted := proto.CloneOf(r)
	admitted.Admitted = append(admitted.Admitted, key)
	value, err := proto.Marshal(admitted)
	return []store.Op{store.Put(dirRevoked+managerRevocation(name), value)}, err
}

func containsKey(keys [][]byte, key []byte) bool {
	return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
}

// revokedManagerLocked reports whether a manager that is up was revoked, and has a key that was not
// admitted since. An external store does not prevent its registration.
func (v *view) revokedManagerLocked(r *apiv1.StoredManager) bool {
	revoked := v.revoked[managerRevocation(r.GetName())]
	hash := sha256.Sum256(r.GetPublicKey())
	return revoked != nil && !containsKey(revoked.GetAdmitted(), hash[:])
}

// revokedLocked reports whether a certificate of a node or a manager was revoked. It handles no
// others, because people may have the names of nodes, and their certificates are stored.
func (v *view) revokedLocked(cert *x509.Certificate) bool {
	name, role := pki.Identity(cert)
	if role == pki.RoleManager {
		r := v.revoked[managerRevocation(name)]
		return r != nil && !containsKey(r.GetAdmitted(), pki.KeyHash(cert))
	}
	r := v.revoked[name]
	return isNodeRole(role) && r != nil && !pki.IssuedAt(cert).After(r.GetBefore().AsTime())
}

func compareRefs(a, b ref) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
}
