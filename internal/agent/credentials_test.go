package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/token"
)

// shown returns the certificate chain that a server of the CA presents.
func shown(t *testing.T, ca *pki.CA) []*x509.Certificate {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Manager("m1", key, nil, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{cert.Leaf, ca.Cert}
}

func TestJoinTrustsOnlyTheTokensManager(t *testing.T) {
	good, err := pki.NewCA("good", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	evil, err := pki.NewCA("evil", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	node, _, err := good.Client("mux1", "mux", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	nodeCert, err := parseCert(node)
	if err != nil {
		t.Fatal(err)
	}
	verify := joinTLS(token.New(good.Hash(), make([]byte, token.RandomBytes))).VerifyConnection
	for name, c := range map[string]struct {
		chain []*x509.Certificate
		ok    bool
	}{
		"the manager":                {shown(t, good), true},
		"another CA":                 {shown(t, evil), false},
		"another leaf beside our CA": {[]*x509.Certificate{shown(t, evil)[0], good.Cert}, false},
		"a node's certificate":       {[]*x509.Certificate{nodeCert, good.Cert}, false},
		"a server without its CA":    {shown(t, good)[:1], false},
		"nothing":                    {nil, false},
	} {
		if err := verify(tls.ConnectionState{PeerCertificates: c.chain}); (err == nil) != c.ok {
			t.Errorf("%s: %v, want trust %v", name, err, c.ok)
		}
	}
}

// Join implements the node protocol: every certificate request is granted.
func (m *managerTwin) Join(_ context.Context, req *connect.Request[apiv1.JoinRequest]) (*connect.Response[apiv1.JoinResponse], error) {
	now := time.Now()
	cert, err := m.ca.SignNode(req.Msg.GetCsr(), req.Msg.GetName(), req.Msg.GetRole(), now, now)
	return connect.NewResponse(&apiv1.JoinResponse{Certificate: cert, Ca: m.ca.CertPEM()}), err
}

// TestRenewedOnAFullDisk: a renewed certificate is used even if it cannot be written. One obtained
// with a token is not, because a node that lost it could not join again.
func TestRenewedOnAFullDisk(t *testing.T) {
	m := newManagerTwin(t)
	cert, key, err := m.ca.Client("mux1", "mux", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	former, err := parseCredentials(bytes.Join([][]byte{key, cert, m.ca.CertPEM()}, nil))
	if err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(full, nil, 0o600); err != nil { // in the way of the directory
		t.Fatal(err)
	}
	for dir, unsaved := range map[string]bool{full: true, t.TempDir(): false} {
		o := &Options{Name: "mux1", Role: "mux", StateDir: dir, Log: slog.New(slog.DiscardHandler)}
		next, err := join(t.Context(), o, m.address, former.clientTLS(), "", former)
		if err != nil {
			t.Fatal(err)
		}
		if next.unsaved.Load() != unsaved || next.cert.Leaf.Equal(former.cert.Leaf) {
			t.Errorf("%s: unsaved %v, want %v; another certificate: %v", dir, next.unsaved.Load(), unsaved, !next.cert.Leaf.Equal(former.cert.Leaf))
		}
		kept, err := loadCredentials(o)
		if !unsaved && (err != nil || kept == nil || !kept.cert.Leaf.Equal(next.cert.Leaf)) {
			t.Errorf("the file has %v, %v", kept, err)
		}
	}
	o := &Options{Name: "mux1", Role: "mux", StateDir: full, Log: slog.New(slog.DiscardHandler)}
	tok := token.New(m.ca.Hash(), make([]byte, token.RandomBytes))
	if _, err := join(t.Context(), o, m.address, joinTLS(tok), tok.String(), nil); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a join by token without a state directory: %v", err)
	}
}

func parseCert(content []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(content)
	return x509.ParseCertificate(block.Bytes)
}
