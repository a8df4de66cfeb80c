package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/token"
)

// credentials are the node's certificate with its key, and the manager's CA.
type credentials struct {
	cert tls.Certificate
	ca   *x509.Certificate
	// sessions are those that began with this certificate, good at any manager: another connection needs no signatures.
	sessions tls.ClientSessionCache
}

// renewAt is when two thirds of the certificate's life have passed.
func (c *credentials) renewAt() time.Time {
	leaf := c.cert.Leaf
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 2 / 3)
}

func (c *credentials) caHash() [sha256.Size]byte { return sha256.Sum256(c.ca.Raw) }

// credentialsFile holds key, certificate and CA as PEM blocks in this order, so that they change together.
const credentialsFile = "node.pem"

// loadCredentials returns nil when there are none for this node.
func loadCredentials(o *Options) (*credentials, error) {
	content, err := os.ReadFile(filepath.Join(o.StateDir, credentialsFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	c, err := parseCredentials(content)
	if err != nil {
		return nil, fmt.Errorf("read credentials %s: %w", filepath.Join(o.StateDir, credentialsFile), err)
	}
	if name, role := pki.Identity(c.cert.Leaf); name != o.Name || role != o.Role {
		return nil, fmt.Errorf("read credentials: %s is the state of %s %s: must be of %s %s, or use another directory", o.StateDir, role, name, o.Role, o.Name)
	}
	return c, nil
}

func parseCredentials(content []byte) (*credentials, error) {
	key, rest := pem.Decode(content)
	cert, rest := pem.Decode(rest)
	ca, _ := pem.Decode(rest)
	if key == nil || cert == nil || ca == nil {
		return nil, errors.New("must hold key, certificate and CA")
	}
	pair, err := tls.X509KeyPair(pem.EncodeToMemory(cert), pem.EncodeToMemory(key))
	if err != nil {
		return nil, err
	}
	caCert, err := x509.ParseCertificate(ca.Bytes)
	if err != nil {
		return nil, err
	}
	return &credentials{cert: pair, ca: caCert, sessions: tls.NewLRUClientSessionCache(1)}, nil
}

// readToken reads the token file.
func readToken(path string) (token.Token, error) {
	if path == "" {
		return token.Token{}, errors.New("the node has no certificate yet: a token file is required")
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return token.Token{}, fmt.Errorf("the node has no certificate yet: read token: %w", err)
	}
	t, err := token.Parse(string(content))
	if err != nil {
		return token.Token{}, fmt.Errorf("read token %s: %w", path, err)
	}
	return t, nil
}

// joinTLS trusts the one CA that the token names.
func joinTLS(t token.Token) *tls.Config { return pki.JoinTLS(t.CA) }

// clientTLS is mutual TLS with the manager. The name is always pki.ServerName, whatever address is dialled.
func (c *credentials) clientTLS() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(c.ca)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: pki.ServerName, Certificates: []tls.Certificate{c.cert},
		ClientSessionCache: c.sessions,
	}
}

// resuming makes cfg one for a session that is kept, and tells whether there is one. What is agreed upon anew goes into the
// keys of a resumed session beside what its first handshake agreed upon (RFC 8446 §7.1), which was hybrid with ML-KEM: a curve
// is enough, and P-256 takes a fifth of the time.
func (c *credentials) resuming(cfg *tls.Config) bool {
	if _, kept := c.sessions.Get(cfg.ServerName); !kept {
		return false
	}
	cfg.CurvePreferences = []tls.CurveID{tls.CurveP256}
	return true
}

// forget drops the session that is kept.
func (c *credentials) forget(cfg *tls.Config) { c.sessions.Put(cfg.ServerName, nil) }

// join gets a certificate for a token, or renews it when the token is empty and cfg carries the present one.
func join(ctx context.Context, o *Options, address string, cfg *tls.Config, tok string) (*credentials, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: o.Name}}, key)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	client := newClient(o, address, cfg)
	defer client.close()
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	res, err := client.Join(ctx, connect.NewRequest(&apiv1.JoinRequest{Token: tok, Name: o.Name, Role: o.Role, Csr: csr}))
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", address, err)
	}
	keyPEM, err := pki.KeyPEM(key)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	content := append(append(keyPEM, res.Msg.GetCertificate()...), res.Msg.GetCa()...)
	c, err := parseCredentials(content)
	if err != nil {
		return nil, fmt.Errorf("join %s: answer: %w", address, err)
	}
	return c, writeFile(filepath.Join(o.StateDir, credentialsFile), content)
}
