package manager

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/pki"
)

// Files in pki/ for TLS between the store's peers: this manager's certificate and key, and the CAs
// that it accepts.
const (
	certFile  = "manager.crt"
	keyFile   = "manager.key"
	peersFile = "peers.crt"
)

// renewEvery is the interval at which a manager checks the age of its certificate.
const renewEvery = 12 * time.Hour

// managerCert is this manager's certificate for the API, other managers and the store's peers. It
// is made at every start, again long before it expires, and when the CA is replaced. Its key stays,
// so that the two files match at any time.
type managerCert struct {
	secrets *secrets
	// trusts are the CAs whose certificates this process accepts, from its start to its end.
	trusts []*x509.Certificate
	dir    *DataDir
	clock  clock.Clock
	name   string
	key    crypto.Signer
	names  []string
	addrs  []net.IP
	// tickets holds the keys of TLS session tickets; nil when this manager has no server.
	tickets *tickets

	mu   sync.Mutex
	cert *tls.Certificate
}

// newManagerCert makes a certificate for every way to reach this manager: the advertised and
// listened addresses, the host's name, and the addresses of its interfaces.
func newManagerCert(s *secrets, o Options) (*managerCert, error) {
	c := &managerCert{secrets: s, trusts: s.cas(), dir: o.Dir, clock: o.Clock, name: o.Name, names: []string{"localhost"}, addrs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}}
	if host, err := os.Hostname(); err == nil {
		c.names = append(c.names, host)
	}
	for _, addr := range []string{o.Listen, o.Advertise, o.Peer} {
		host, _, err := net.SplitHostPort(addr)
		if err != nil || host == "" {
			continue
		}
		if ip := net.ParseIP(host); ip == nil {
			c.names = append(c.names, host)
		} else if !ip.IsUnspecified() {
			c.addrs = append(c.addrs, ip)
		}
	}
	c.addrs = append(c.addrs, interfaceAddrs()...)
	var err error
	if c.key, err = loadManagerKey(o.Dir); err != nil {
		return nil, err
	}
	if err := writeFile(o.Dir.pki(peersFile), pki.BundlePEM(c.trusts)); err != nil {
		return nil, fmt.Errorf("write the CAs of the store's peers: %w", err)
	}
	return c, c.makeLocked(o.Clock.Now())
}

// loadManagerKey reads the key, or creates it if it is absent.
func loadManagerKey(dir *DataDir) (crypto.Signer, error) {
	content, err := readFile(dir.pki(keyFile))
	if err != nil {
		return nil, fmt.Errorf("read manager's key: %w", err)
	}
	if content != nil {
		key, err := pki.ParseKey(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir.pki(keyFile), err)
		}
		return key, nil
	}
	key, err := pki.NewKey()
	if err != nil {
		return nil, fmt.Errorf("make manager's key: %w", err)
	}
	if content, err = pki.KeyPEM(key); err != nil {
		return nil, err
	}
	if err := writeFile(dir.pki(keyFile), content); err != nil {
		return nil, fmt.Errorf("write manager's key: %w", err)
	}
	return key, nil
}

func (c *managerCert) makeLocked(now time.Time) error {
	cert, err := c.secrets.ca().Manager(c.name, c.key, c.names, c.addrs, now)
	if err != nil {
		return err
	}
	if err := writeFile(c.dir.pki(certFile), pki.ChainPEM(cert)); err != nil {
		return fmt.Errorf("write manager's certificate: %w", err)
	}
	c.cert = cert
	return nil
}

// remake replaces the certificate by one of the CA that signs now.
func (c *managerCert) remake() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.makeLocked(c.clock.Now())
}

// issuer returns the CA that signed the certificate.
func (c *managerCert) issuer() (*x509.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return x509.ParseCertificate(c.cert.Certificate[1])
}

// current returns the certificate, and renews it first if it is old. If the renewal fails, it
// returns the old one as long as it is valid.
func (c *managerCert) current() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	if c.cert.Leaf.NotAfter.Sub(now) > pki.ServerLifetime/3 {
		return c.cert, nil
	}
	if err := c.makeLocked(now); err != nil && !c.cert.Leaf.NotAfter.After(now) {
		return nil, err
	}
	return c.cert, nil
}

// keep renews the certificate in time, until ctx ends, even if no connection needs it, because the
// store's peers read the files.
func (c *managerCert) keep(ctx context.Context) {
	for {
		select {
		case <-c.clock.After(renewEvery):
			_, _ = c.current() // the next caller of current gets the error
			c.tickets.renew(c.clock.Now())
		case <-ctx.Done():
			return
		}
	}
}

// server returns the API's TLS configuration. Clients without a certificate may connect, to
// authenticate in another way.
func (c *managerCert) server() *tls.Config {
	cfg := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		NextProtos:     []string{"h2", "http/1.1"},
		ClientAuth:     tls.VerifyClientCertIfGiven,
		ClientCAs:      pki.Pool(c.trusts),
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current() },
	}
	c.tickets.serve(cfg, c.clock.Now())
	return cfg
}

// client returns the TLS configuration for connections to other managers. The expected name is
// always pki.ServerName, whatever address is dialled.
func (c *managerCert) client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pki.Pool(c.trusts), ServerName: pki.ServerName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.current() },
	}
}

// Certify writes the certificate files of an embedded store's peer, DIR/pki/manager.crt and
// manager.key, next to ca.crt, before the store is opened. A data directory without a store gets a
// CA of its own.
func Certify(o Options) error {
	o.fill()
	_, err := os.Stat(filepath.Join(o.Dir.Etcd(), "member"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for the store: %w", err)
	}
	s, err := loadSecrets(o.Dir, o.Name, err == nil, o.Clock.Now())
	if err != nil {
		return err
	}
	_, err = newManagerCert(s, o)
	return err
}

// PeerFiles returns the files that Certify writes and every start renews: this manager's
// certificate and key, and the CAs whose certificates it accepts.
func (d *DataDir) PeerFiles() (cert, key, cas string) {
	return d.pki(certFile), d.pki(keyFile), d.pki(peersFile)
}

// interfaceAddrs returns this machine's addresses except loopback and link-local ones.
func interfaceAddrs() []net.IP {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var out []net.IP
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			out = append(out, n.IP)
		}
	}
	return out
}
