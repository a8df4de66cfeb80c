// Package pki makes and reads the certificates of managers, nodes and people.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// Lifetimes of certificates, and the name in every server certificate.
const (
	CALifetime     = 20 * 365 * 24 * time.Hour
	ServerLifetime = 90 * 24 * time.Hour
	AdminLifetime  = 365 * 24 * time.Hour
	NodeLifetime   = 30 * 24 * time.Hour
	// backdate tolerates clocks that are behind.
	backdate = 5 * time.Minute
	// ServerName is in every server certificate. A node checks it whatever address it dials.
	ServerName = "manager.shunt.internal"
)

// Roles in a certificate's organizational unit. Nodes have those of lb.Role.
const (
	RoleAdmin = "admin"
	// RoleTenant may manage the objects that its tenant owns; the tenant is the certificate's
	// organization.
	RoleTenant  = "tenant"
	RoleViewer  = "viewer"
	RoleManager = "manager"
)

// CA is a certificate authority. Join tokens contain the SHA-256 of its certificate.
type CA struct {
	Cert *x509.Certificate
	key  crypto.Signer
}

// NewCA creates a certificate authority.
func NewCA(name string, now time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(now), Subject: pkix.Name{CommonName: "Shunt CA of " + name},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(CALifetime),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return &CA{Cert: cert, key: key}, err
}

// ParseCA parses the output of CertPEM and KeyPEM.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("certificate is not one of a CA")
	}
	return &CA{Cert: pair.Leaf, key: key}, nil
}

// ParseCert reads the first certificate of a PEM file.
func ParseCert(content []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, errors.New("certificate: must be PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

// CertPEM returns the CA's certificate.
func (ca *CA) CertPEM() []byte { return certPEM(ca.Cert.Raw) }

// KeyPEM returns the CA's private key.
func (ca *CA) KeyPEM() ([]byte, error) { return KeyPEM(ca.key) }

// Hash returns the SHA-256 of the CA's certificate.
func (ca *CA) Hash() [sha256.Size]byte { return sha256.Sum256(ca.Cert.Raw) }

// Pool returns a pool with only this CA.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return pool
}

// NewKey creates a private key for a certificate.
func NewKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// Manager creates a certificate of role manager, for both ends of TLS, with the names, addresses
// and ServerName. The chain includes the CA, so that a joining member can compare its hash.
func (ca *CA) Manager(name string, key crypto.Signer, names []string, addrs []net.IP, now time.Time) (*tls.Certificate, error) {
	der, err := ca.manager(name, key.Public(), names, addrs, now)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der, ca.Cert.Raw}, PrivateKey: key, Leaf: cert}, err
}

// SignManager creates such a certificate for the key of a request (PKCS #10, DER), PEM. It uses
// only the key of the request.
func (ca *CA) SignManager(csr []byte, name string, now time.Time) ([]byte, error) {
	pub, err := requestKey(csr)
	if err != nil {
		return nil, err
	}
	der, err := ca.manager(name, pub, nil, nil, now)
	return certPEM(der), err
}

func (ca *CA) manager(name string, pub crypto.PublicKey, names []string, addrs []net.IP, now time.Time) ([]byte, error) {
	template := leaf(name, RoleManager, now, ServerLifetime, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	template.DNSNames, template.IPAddresses = append([]string{ServerName}, names...), addrs
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Cert, pub, ca.key)
	if err != nil {
		return nil, fmt.Errorf("make manager's certificate: %w", err)
	}
	return der, nil
}

// Client creates a key and a client certificate, both PEM.
func (ca *CA) Client(name, role string, lifetime time.Duration, now time.Time) (cert, key []byte, err error) {
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make client certificate: %w", err)
	}
	if cert, err = ca.client(name, role, lifetime, now, now, priv.Public()); err != nil {
		return nil, nil, err
	}
	key, err = KeyPEM(priv)
	return cert, key, err
}

// SignNode creates a client certificate for the key of a request (PKCS #10, DER). It uses only the
// key of the request. IssuedAt returns issued, which is later than now if the clock was set back.
func (ca *CA) SignNode(csr []byte, name, role string, now, issued time.Time) ([]byte, error) {
	pub, err := requestKey(csr)
	if err != nil {
		return nil, err
	}
	return ca.client(name, role, NodeLifetime, now, issued, pub)
}

// Person is the owner of a person's certificate.
type Person struct {
	Name, Role string
	// Tenant is that of RoleTenant, else empty.
	Tenant string
	// ID identifies the certificate at the manager.
	ID string
}

// SignPerson creates a client certificate for the key of a request (PKCS #10, DER). It uses only
// the key of the request.
func (ca *CA) SignPerson(csr []byte, p Person, lifetime time.Duration, now time.Time) (*x509.Certificate, error) {
	pub, err := requestKey(csr)
	if err != nil {
		return nil, err
	}
	template := leaf(p.Name, p.Role, now, lifetime, x509.ExtKeyUsageClientAuth)
	template.Subject.SerialNumber = p.ID
	if p.Tenant != "" {
		template.Subject.Organization = []string{p.Tenant}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Cert, pub, ca.key)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// PersonID returns Person.ID of a certificate; empty if SignPerson did not create it.
func PersonID(cert *x509.Certificate) string { return cert.Subject.SerialNumber }

// PEM returns a certificate as PEM.
func PEM(cert *x509.Certificate) []byte { return certPEM(cert.Raw) }

// CheckRequest returns the fault of a certificate request.
func CheckRequest(csr []byte) error {
	_, err := requestKey(csr)
	return err
}

// RequestKeyHash returns the SHA-256 of the public key (SubjectPublicKeyInfo) of a certificate
// request.
func RequestKeyHash(csr []byte) ([]byte, error) {
	if _, err := requestKey(csr); err != nil {
		return nil, err
	}
	req, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	hash := sha256.Sum256(req.RawSubjectPublicKeyInfo)
	return hash[:], nil
}

// KeyHash returns the same hash for a certificate.
func KeyHash(cert *x509.Certificate) []byte {
	hash := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hash[:]
}

// requestKey returns the key of a certificate request, after checking that the requester has the
// private key.
func requestKey(csr []byte) (crypto.PublicKey, error) {
	req, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: signature: %w", err)
	}
	if _, ok := req.PublicKey.(*ecdsa.PublicKey); !ok {
		return nil, fmt.Errorf("certificate request: key: %T: must be ECDSA", req.PublicKey)
	}
	return req.PublicKey, nil
}

func (ca *CA) client(name, role string, lifetime time.Duration, now, issued time.Time, pub crypto.PublicKey) ([]byte, error) {
	template := leaf(name, role, now, lifetime, x509.ExtKeyUsageClientAuth)
	template.SerialNumber = serial(issued)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Cert, pub, ca.key)
	if err != nil {
		return nil, fmt.Errorf("make client certificate: %w", err)
	}
	return certPEM(der), nil
}

func leaf(name, role string, now time.Time, lifetime time.Duration, uses ...x509.ExtKeyUsage) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: serial(now), Subject: pkix.Name{CommonName: name, OrganizationalUnit: []string{role}},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: uses, BasicConstraintsValid: true,
	}
}

// serial returns the time of issue in nanoseconds (64 bits), then 64 random bits.
func serial(now time.Time) *big.Int {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(now.UnixNano()))
	rand.Read(b[8:])
	return new(big.Int).SetBytes(b[:])
}

// IssuedAt returns the exact time at which this package made the certificate; NotBefore is earlier.
func IssuedAt(cert *x509.Certificate) time.Time {
	return time.Unix(0, new(big.Int).Rsh(cert.SerialNumber, 64).Int64())
}

// Identity returns the name and role of a certificate's owner.
func Identity(cert *x509.Certificate) (name, role string) {
	if ou := cert.Subject.OrganizationalUnit; len(ou) == 1 {
		role = ou[0]
	}
	return cert.Subject.CommonName, role
}

// Tenant returns the tenant in a certificate of RoleTenant; empty if there is none, or several.
func Tenant(cert *x509.Certificate) string {
	if o := cert.Subject.Organization; len(o) == 1 {
		return o[0]
	}
	return ""
}

// ChainPEM returns the certificates of a pair as PEM.
func ChainPEM(pair *tls.Certificate) []byte {
	var out []byte
	for _, der := range pair.Certificate {
		out = append(out, certPEM(der)...)
	}
	return out
}

// ParseKey parses the output of KeyPEM.
func ParseKey(content []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, errors.New("read key: must be PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("read key: %T: must be a private key that signs", key)
	}
	return signer, nil
}

// KeyPEM returns a private key as PEM (PKCS #8).
func KeyPEM(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
