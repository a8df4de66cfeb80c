package pki

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
)

// ErrOtherCA: the CA of a manager is not that of a join token.
var ErrOtherCA = errors.New("the manager's CA is not the one that the token names")

// JoinTLS returns the client configuration for a client that has only the hash of the CA, from a
// join token.
func JoinTLS(ca [sha256.Size]byte) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The chain is verified below, against the CA with the hash instead of a known pool.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			for _, cert := range cs.PeerCertificates {
				if sha256.Sum256(cert.Raw) == ca {
					return verifyServer(cs.PeerCertificates[0], cert)
				}
			}
			return ErrOtherCA
		},
	}
}

func verifyServer(leaf, ca *x509.Certificate) error {
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	_, err := leaf.Verify(x509.VerifyOptions{DNSName: ServerName, Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}
