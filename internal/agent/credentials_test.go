package agent

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/token"
)

// shown is the chain that a server of the CA shows.
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

func parseCert(content []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(content)
	return x509.ParseCertificate(block.Bytes)
}
