package agent

import (
	"context"
	"crypto"
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
	"slices"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/token"
)

// credentials are the node's certificate with its key, and the managers' CAs. They are immutable
// except for unsaved.
type credentials struct {
	cert tls.Certificate
	// cas are the accepted CAs of managers: one, or two while the CA is replaced.
	cas []*x509.Certificate
	// issuer is the fingerprint of the CA in cas that signed the certificate; 0: none of them did.
	issuer uint64
	// former are CAs that were replaced. A token that names one is of this cluster, and of no use.
	former []*x509.Certificate
	// sessions are TLS sessions established with this certificate. They are valid at any manager,
	// so that another connection needs no signatures.
	sessions tls.ClientSessionCache
	// content is that of credentialsFile; unsaved: the file has an earlier certificate.
	content []byte
	unsaved atomic.Bool
}

// renewAt returns when two thirds of the certificate's lifetime have passed.
func (c *credentials) renewAt() time.Time {
	leaf := c.cert.Leaf
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 2 / 3)
}

// ofCluster reports whether a CA, given by the SHA-256 of its certificate, is or was accepted by
// the node.
func (c *credentials) ofCluster(ca [sha256.Size]byte) bool {
	is := func(cert *x509.Certificate) bool { return sha256.Sum256(cert.Raw) == ca }
	return slices.ContainsFunc(c.cas, is) || slices.ContainsFunc(c.former, is)
}

// credentialsFile holds key, certificate, CAs and replaced CAs as PEM blocks in this order, so that
// they change together. Earlier builds read the first three.
const credentialsFile = "node.pem"

// formerBlock is the type of the PEM block of a replaced CA.
const formerBlock = "FORMER CERTIFICATE"

// loadCredentials returns nil if there are none.
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
	if key == nil || cert == nil {
		return nil, errors.New("must hold key, certificate and CA")
	}
	pair, err := tls.X509KeyPair(pem.EncodeToMemory(cert), pem.EncodeToMemory(key))
	if err != nil {
		return nil, err
	}
	c := &credentials{cert: pair, sessions: tls.NewLRUClientSessionCache(1), content: content}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if block.Type == formerBlock {
			c.former = append(c.former, ca)
		} else {
			c.cas = append(c.cas, ca)
		}
	}
	if len(c.cas) == 0 {
		return nil, errors.New("must hold key, certificate and CA")
	}
	for _, ca := range c.cas {
		if pki.SignedBy(c.cert.Leaf, ca) {
			c.issuer = pki.Fingerprint(ca)
		}
	}
	return c, nil
}

// formerPEM encodes replaced CAs.
func formerPEM(former []*x509.Certificate) (out []byte) {
	for _, ca := range former {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: formerBlock, Bytes: ca.Raw})...)
	}
	return out
}

// with returns the credentials with other accepted CAs. Those that are no longer accepted are added
// to former.
func (c *credentials) with(cas []*x509.Certificate) (*credentials, error) {
	key, rest := pem.Decode(c.content)
	cert, _ := pem.Decode(rest)
	var former []*x509.Certificate
	for _, ca := range slices.Concat(c.former, c.cas) {
		if !pki.Holds(cas, ca) && !pki.Holds(former, ca) {
			former = append(former, ca)
		}
	}
	return parseCredentials(slices.Concat(pem.EncodeToMemory(key), pem.EncodeToMemory(cert), pki.BundlePEM(cas), formerPEM(former)))
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

// joinTLS trusts only the CA that the token names.
func joinTLS(t token.Token) *tls.Config { return pki.JoinTLS(t.CA) }

// clientTLS returns the configuration of mutual TLS with the manager. The name is always
// pki.ServerName, whatever address is dialed.
func (c *credentials) clientTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pki.Pool(c.cas), ServerName: pki.ServerName, Certificates: []tls.Certificate{c.cert},
		ClientSessionCache: c.sessions,
	}
}

// resuming prepares cfg to resume the cached session and reports whether there is one. The keys of
// a resumed session depend on the new key exchange and on that of the first handshake (RFC 8446
// §7.1), which was hybrid with ML-KEM. So a curve is enough, and P-256 takes a fifth of the time.
func (c *credentials) resuming(cfg *tls.Config) bool {
	if _, kept := c.sessions.Get(cfg.ServerName); !kept {
		return false
	}
	cfg.CurvePreferences = []tls.CurveID{tls.CurveP256}
	return true
}

// forget drops the cached session.
func (c *credentials) forget(cfg *tls.Config) { c.sessions.Put(cfg.ServerName, nil) }

// join gets a certificate for a token, or renews it if the token is empty and cfg has the current
// one, which is in had. A renewed certificate is returned even if it could not be written. had is
// nil before the first join.
func join(ctx context.Context, o *Options, address string, cfg *tls.Config, tok string, had *credentials) (*credentials, error) {
	key, err := joinKey(o.StateDir, tok != "")
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
	c, err := parseCredentials(slices.Concat(keyPEM, res.Msg.GetCertificate(), res.Msg.GetCa(), res.Msg.GetMoreCas()))
	if err == nil && had != nil && had.ofCluster(sha256.Sum256(c.cas[0].Raw)) {
		c.former = slices.Concat(had.former, had.cas)
		c, err = c.with(c.cas)
	}
	if err != nil {
		return nil, fmt.Errorf("join %s: answer: %w", address, err)
	}
	err = writeFile(filepath.Join(o.StateDir, credentialsFile), c.content)
	if tok == "" {
		if err != nil {
			// Continue, because a full disk must not keep a node at a certificate that expires.
			o.Log.Warn("cannot keep the renewed certificate, tries again", "error", err)
			c.unsaved.Store(true)
		}
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	if err := os.Remove(filepath.Join(o.StateDir, joinKeyFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("join: %w", err)
	}
	return c, nil
}

// joinKeyFile holds the key of a node that has not joined yet.
const joinKeyFile = "join.key"

// joinKey returns the key for a certificate. A key to join with a token is stored until the node
// has joined, because the token is valid for one key, and the response to an attempt may be lost.
func joinKey(dir string, kept bool) (crypto.Signer, error) {
	if !kept {
		return pki.NewKey()
	}
	path := filepath.Join(dir, joinKeyFile)
	content, err := os.ReadFile(path)
	if err == nil {
		if key, err := pki.ParseKey(content); err == nil {
			return key, nil
		}
		// A node cannot have joined with a damaged key.
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read key: %w", err)
	}
	key, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	if content, err = pki.KeyPEM(key); err != nil {
		return nil, err
	}
	return key, writeFile(path, content)
}
