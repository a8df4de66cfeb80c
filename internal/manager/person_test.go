package manager_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/pki"
)

// certified returns the TLS configuration of a person with a certificate that another tool made
// with the CA's key, as docs/ops/access.md shows.
func (r *rig) certified(subject pkix.Name) *tls.Config {
	r.t.Helper()
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(r.path, "pki", name))
		if err != nil {
			r.t.Fatal(err)
		}
		return b
	}
	ca, err := tls.X509KeyPair(read("ca.crt"), read("ca.key"))
	if err != nil {
		r.t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		r.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: subject, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		r.t.Fatal(err)
	}
	return &tls.Config{RootCAs: r.ca().Pool(), ServerName: pki.ServerName, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

// bearer returns a client without a certificate that sends a token.
func (r *rig) bearer(token string) shuntv1connect.ManagerClient {
	send := func(h interface{ Set(key, value string) }) { h.Set("Authorization", "Bearer "+token) }
	return shuntv1connect.NewManagerClient(r.httpClient(r.as(nil, "", "none")), "https://"+r.addr, connect.WithInterceptors(headers(send)))
}

// headers is an interceptor that sets headers of requests.
type headers func(interface{ Set(key, value string) })

func (h headers) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		h(req.Header())
		return next(ctx, req)
	}
}

func (h headers) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		h(conn.RequestHeader())
		return conn
	}
}

func (h headers) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// access creates an access token. A ttl of 0 means the default.
func (r *rig) access(name, role, tenant string, ttl time.Duration) *apiv1.CreateAccessResponse {
	r.t.Helper()
	req := &apiv1.CreateAccessRequest{Name: name, Role: role, Tenant: tenant}
	if ttl != 0 {
		req.Ttl = durationpb.New(ttl)
	}
	res, err := r.admin.CreateAccess(r.t.Context(), connect.NewRequest(req))
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Msg
}

func (r *rig) revoke(id string) error {
	_, err := r.admin.RevokeAccess(r.t.Context(), connect.NewRequest(&apiv1.RevokeAccessRequest{Id: id}))
	return err
}
