package worker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
)

// Names of protocols in ALPN (RFC 7301, RFC 9113 section 3.2).
const (
	alpnHTTP1 = "http/1.1"
	alpnHTTP2 = "h2"
)

// tlsConfig returns the TLS configuration of a check. Sessions are never resumed, because a probe
// has to prove the whole handshake.
func tlsConfig(c lb.Check, clock clock.Clock) (*tls.Config, error) {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, InsecureSkipVerify: !c.Verify, SessionTicketsDisabled: true, Time: clock.Now,
		NextProtos: []string{alpnHTTP1},
	}
	if c.Kind == lb.CheckGRPC || c.Version == lb.HTTP2 {
		config.NextProtos = []string{alpnHTTP2}
	}
	if c.CA == "" {
		return config, nil
	}
	pool, err := parseCA(c.CA)
	config.RootCAs = pool
	return config, err
}

// parseCA parses a PEM text in which each block must be a certificate.
func parseCA(text string) (*x509.CertPool, error) {
	pool, n := x509.NewCertPool(), 0
	for rest := []byte(text); ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("ca: block %d is a %s: must be a CERTIFICATE", n+1, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("ca: certificate %d: %w", n+1, err)
		}
		pool.AddCert(cert)
	}
	if n == 0 {
		return nil, errors.New("ca: must hold a certificate in PEM")
	}
	return pool, nil
}

// secure performs the TLS handshake.
func (t *target) secure(ctx context.Context, conn net.Conn) (*tls.Conn, *finding) {
	config := t.tls.Clone()
	config.ServerName = t.serverName()
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		f := t.noHandshake(ctx, err)
		return nil, &f
	}
	if t.http2() && secured.ConnectionState().NegotiatedProtocol != alpnHTTP2 {
		f := bad("no HTTP/2")
		return nil, &f
	}
	return secured, nil
}
