package pki

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// Fingerprint returns the first eight bytes of the SHA-256 of a certificate. It names a CA in
// reports, where collisions are harmless.
func Fingerprint(cert *x509.Certificate) uint64 {
	hash := sha256.Sum256(cert.Raw)
	return binary.BigEndian.Uint64(hash[:8])
}

// Fingerprints returns those of several certificates.
func Fingerprints(certs []*x509.Certificate) []uint64 {
	var out []uint64
	for _, c := range certs {
		out = append(out, Fingerprint(c))
	}
	return out
}

// ParseCerts reads all certificates of a PEM file, at least one.
func ParseCerts(content []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, cert)
	}
	if len(out) == 0 {
		return nil, errors.New("certificate: must be PEM")
	}
	return out, nil
}

// ParseCAs reads certificates of CAs, DER, at least one.
func ParseCAs(ders [][]byte) ([]*x509.Certificate, error) {
	if len(ders) == 0 {
		return nil, errors.New("CAs: must be at least one")
	}
	var out []*x509.Certificate
	for i, der := range ders {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("CAs: %d: %w", i, err)
		}
		if !cert.IsCA {
			return nil, fmt.Errorf("CAs: %d: must be a certificate of a CA", i)
		}
		out = append(out, cert)
	}
	return out, nil
}

// BundlePEM writes certificates.
func BundlePEM(certs []*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, PEM(c)...)
	}
	return out
}

// Pool returns a pool of the certificates.
func Pool(certs []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}

// Same reports whether two lists have the same certificates in the same order.
func Same(a, b []*x509.Certificate) bool {
	return slices.EqualFunc(a, b, func(x, y *x509.Certificate) bool { return bytes.Equal(x.Raw, y.Raw) })
}

// Holds reports whether a list contains a certificate.
func Holds(list []*x509.Certificate, cert *x509.Certificate) bool {
	return slices.ContainsFunc(list, func(c *x509.Certificate) bool { return bytes.Equal(c.Raw, cert.Raw) })
}

// SignedBy reports whether a CA signed a certificate.
func SignedBy(cert, ca *x509.Certificate) bool { return cert.CheckSignatureFrom(ca) == nil }
