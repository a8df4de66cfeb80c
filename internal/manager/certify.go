package manager

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// maxCSRBytes is more than the size of a request for a P-521 key with a long name.
const maxCSRBytes = 4 << 10

// CreateCertificate implements the API.
func (a api) CreateCertificate(ctx context.Context, req *connect.Request[apiv1.CreateCertificateRequest]) (*connect.Response[apiv1.CreateCertificateResponse], error) {
	ttl := defaultCertificateTTL
	if d := req.Msg.GetTtl(); d != nil {
		ttl = d.AsDuration()
	}
	faults := accessFaults(req.Msg, ttl)
	if csr := req.Msg.GetCsr(); len(csr) > maxCSRBytes || pki.CheckRequest(csr) != nil {
		faults = append(faults, lb.Violation{Field: "csr", Allowed: "must be a certificate request (PKCS #10, DER) of an ECDSA key, signed with it"})
	}
	if len(faults) > 0 {
		return nil, fault(invalid{faults})
	}
	cert, made, err := a.m.createCertificate(ctx, req.Msg, ttl)
	if err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(&apiv1.CreateCertificateResponse{Certificate: pki.PEM(cert), Access: made}), nil
}

// createCertificate signs and stores a certificate. A certificate that is not stored is refused, so
// that deleting it revokes it.
func (m *Manager) createCertificate(ctx context.Context, req *apiv1.CreateCertificateRequest, ttl time.Duration) (cert *x509.Certificate, made *apiv1.Access, err error) {
	random := make([]byte, 8)
	rand.Read(random)
	p := pki.Person{Name: req.GetName(), Role: req.GetRole(), Tenant: req.GetTenant(), ID: hex.EncodeToString(random)}
	made, err = m.storeAccess(ctx, func(now time.Time) (*apiv1.StoredAccess, error) {
		if cert, err = m.secrets.ca().SignPerson(req.GetCsr(), p, ttl, now); err != nil {
			return nil, err
		}
		hash := sha256.Sum256(cert.Raw)
		return &apiv1.StoredAccess{
			Id: p.ID, CertificateSha256: hash[:], Name: p.Name, Role: p.Role, Tenant: p.Tenant,
			Created: timestamppb.New(now), Expires: timestamppb.New(cert.NotAfter),
		}, nil
	})
	return cert, made, err
}

// Errors for callers whose certificate is no longer valid.
var (
	errBadCertificate = connect.NewError(connect.CodeUnauthenticated, errors.New("client certificate: it was revoked"))
	errOldCertificate = connect.NewError(connect.CodeUnauthenticated, errors.New("client certificate: it has expired"))
)

// certificate returns an error for a certificate that has expired since the handshake, and for a
// person's certificate that was revoked. cause is for the audit log only.
func (d *door) certificate(ctx context.Context, id identity) (cause string, err *connect.Error) {
	switch {
	case id.via != viaCertificate:
		return "", nil
	case !id.expires.After(d.clock.Now()):
		return "", errOldCertificate
	case id.access == "":
		// nodes', managers', the administrator's own and hand-made certificates only expire
		return "", nil
	}
	if d.view.certifies(id) {
		// It may have been revoked elsewhere.
		if err := d.current(ctx); err != nil {
			return "", connect.NewError(connect.CodeUnavailable, err)
		}
	}
	if !d.view.certifies(id) {
		return "access/" + id.access, errBadCertificate
	}
	return "", nil
}

// certifies reports whether the store has the certificate of an identity.
func (v *view) certifies(id identity) bool {
	stored := v.access(id.access)
	if stored == nil || id.cert == nil {
		return false
	}
	hash := sha256.Sum256(id.cert.Raw)
	return bytes.Equal(hash[:], stored.GetCertificateSha256())
}
