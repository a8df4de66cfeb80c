package agent

import (
	"bytes"
	"crypto/tls"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
)

// testPKI returns a CA, the certificate of a manager, and the credentials of node mux1.
func testPKI(t *testing.T) (*pki.CA, *tls.Certificate, *credentials) {
	t.Helper()
	ca, err := pki.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	manager, err := ca.Manager("m1", key, nil, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, certKey, err := ca.Client("mux1", "mux", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	creds, err := parseCredentials(bytes.Join([][]byte{certKey, cert, ca.CertPEM()}, nil))
	if err != nil {
		t.Fatal(err)
	}
	return ca, manager, creds
}
