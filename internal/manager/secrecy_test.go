package manager_test

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/token"
)

// TestNoSecretIsToldToAnybody uses every secret of a manager correctly and incorrectly, and
// searches for them in the whole log, at the most verbose level, and in every error.
func TestNoSecretIsToldToAnybody(t *testing.T) {
	var out lines
	r := newRigOf(t, rig{log: out.logger()})
	r.apply(network(), hostNode(1), muxNode(1), ofTenant("shop-web", "shop", 10))
	r.apply(tenant("shop", 0))
	access, join := r.access("ci", "tenant", "shop", 0), r.token("mux1", "mux")
	var told strings.Builder
	tell := func(err error) {
		t.Helper()
		if err == nil {
			t.Error("must be refused")
			return
		}
		told.WriteString(err.Error() + "\n")
	}
	n := shuntv1connect.NewNodeProtocolClient(r.httpClient(r.as(nil, "", "none")), "https://"+r.addr)
	joinAs := func(tok, node string, csr []byte) error {
		_, err := n.Join(t.Context(), connect.NewRequest(&apiv1.JoinRequest{Token: tok, Name: node, Role: "mux", Csr: csr}))
		return err
	}
	if err := joinAs(join, "mux1", csr(t)); err != nil {
		t.Fatal(err)
	}
	tell(joinAs(join, "mux2", csr(t)))
	tell(joinAs(join, "mux1", nil))
	tell(joinAs(join+"x", "mux1", csr(t)))
	if err := get(t, r.bearer(access.Token)); err != nil {
		t.Fatal(err)
	}
	tell(applyAs(t, r.bearer(access.Token), network()))
	tell(get(t, r.bearer(access.Token+"x")))
	tell(get(t, r.bearer("x"+access.Token)))
	tell(r.revoke(access.Token))
	if err := r.revoke(access.Access.Id); err != nil {
		t.Fatal(err)
	}
	tell(get(t, r.bearer(access.Token)))
	r.stop()

	parsed, err := token.ParseAccess(access.Token)
	if err != nil {
		t.Fatal(err)
	}
	joined, err := token.Parse(join)
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string][]byte{"access secret": parsed.Secret[:], "join secret": joined.Secret[:]}
	for _, file := range []string{"pki/store.key", "pki/ca.key", "pki/manager.key"} {
		if secrets[file], err = os.ReadFile(filepath.Join(r.path, file)); err != nil {
			t.Fatal(err)
		}
	}
	if len(out.String()) < 1000 || told.Len() < 300 {
		t.Fatalf("too little was told to find anything in: %d and %d bytes", len(out.String()), told.Len())
	}
	for name, secret := range secrets {
		if bytes.HasPrefix(secret, []byte("-----")) {
			// the second line of PEM has no other meaning
			secret = bytes.Split(secret, []byte("\n"))[1]
		}
		for _, form := range []string{string(secret), hex.EncodeToString(secret), base64.StdEncoding.EncodeToString(secret), base64.RawURLEncoding.EncodeToString(secret)} {
			if strings.Contains(out.String(), form) {
				t.Errorf("the log has the %s", name)
			}
			if strings.Contains(told.String(), form) {
				t.Errorf("an error has the %s", name)
			}
		}
	}
}

// TestAdminCertificateIsRenewed: a running manager renews the certificate when a third of its
// lifetime is left.
func TestAdminCertificateIsRenewed(t *testing.T) {
	at := clock.NewFake(time.Now())
	r := newRigOf(t, rig{clock: at})
	path := filepath.Join(r.path, "admin.yaml")
	read := func() string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := read()
	at.Advance(pki.AdminLifetime / 2)
	at.Advance(25 * time.Hour)
	if read() != first {
		t.Error("renewed when half of its life is left")
	}
	// The manager may be slow to check and to write. The days advance slowly enough, and half a
	// year is left for the rest.
	at.Advance(pki.AdminLifetime/6 - 25*time.Hour)
	for tries := 0; read() == first; tries++ {
		if tries == maxTries {
			t.Fatal("not renewed")
		}
		at.Advance(25 * time.Hour)
		<-time.After(50 * time.Millisecond)
	}
	cert, err := x509.ParseCertificate(r.adminTLS().Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	_, err = cert.Verify(x509.VerifyOptions{Roots: r.ca().Pool(), CurrentTime: at.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if name, role := pki.Identity(cert); err != nil || name != "admin" || role != pki.RoleAdmin || cert.NotAfter.Sub(at.Now()) < pki.AdminLifetime/2 {
		t.Errorf("the renewed one: %s, role %s, until %v: %v", name, role, cert.NotAfter, err)
	}
}
