package worker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/shuntlb/shunt/internal/probe"
)

// maxNames bounds how many names of a certificate are listed.
const maxNames = 3

// Texts of errors of crypto/tls that have no type of their own.
const (
	alertVersion  = "tls: protocol version not supported"
	otherVersion  = "tls: server selected unsupported protocol version"
	alertProtocol = "tls: no application protocol"
)

// isAlert reports whether err is an alert that the peer sent (RFC 8446 section 6).
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// noHandshake returns the finding for the error of a handshake.
func (t *target) noHandshake(ctx context.Context, err error) finding {
	var refused *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &refused):
		return bad("%s", t.certificateWords(refused))
	case isTimeout(err), ctx.Err() != nil:
		return bad("TLS handshake not done within %s", milliseconds(t.Timeout))
	case isAlert(err) && cause(err) == alertVersion, strings.HasPrefix(err.Error(), otherVersion):
		return bad("TLS: server speaks no version from 1.2 on")
	case isAlert(err) && cause(err) == alertProtocol && t.http2():
		return bad("no HTTP/2")
	case isAlert(err) && cause(err) == alertProtocol:
		return bad("no HTTP/1.1")
	case errors.As(err, &plain):
		return bad("TLS: server speaks something else")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return bad("connected, but reset")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return bad("connected, but closed during the TLS handshake")
	case probe.OwnFault(err):
		return notAsked("", err)
	}
	return bad("TLS: %s", strings.TrimPrefix(cause(err), "tls: "))
}

// certificateWords returns the reason why a certificate was refused, as text.
func (t *target) certificateWords(refused *tls.CertificateVerificationError) string {
	var other x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(refused, &other):
		return fmt.Sprintf("certificate is for %s, not for %s", namesOf(other.Certificate), other.Host)
	case errors.As(refused, &unknown):
		return "certificate is signed by an unknown authority"
	case errors.As(refused, &invalid) && invalid.Reason == x509.Expired:
		whose := "certificate"
		if chain := refused.UnverifiedCertificates; len(chain) > 0 && !chain[0].Equal(invalid.Cert) {
			whose = "certificate of the issuer"
		}
		now := t.clock.Now()
		if now.Before(invalid.Cert.NotBefore) {
			return fmt.Sprintf("%s is not valid yet, but in %s", whose, days(invalid.Cert.NotBefore.Sub(now)))
		}
		return fmt.Sprintf("%s expired %s ago", whose, days(now.Sub(invalid.Cert.NotAfter)))
	}
	return "certificate is not valid: " + strings.TrimPrefix(refused.Err.Error(), "x509: ")
}

// namesOf returns the names in a certificate as text.
func namesOf(c *x509.Certificate) string {
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	switch {
	case len(names) == 0:
		return "no name"
	case len(names) > maxNames:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
	}
	return strings.Join(names, ", ")
}

// days returns a duration in whole days, so that the text about a certificate does not change with
// each probe.
func days(d time.Duration) string {
	switch n := int(d / (24 * time.Hour)); n {
	case 0:
		return "less than a day"
	case 1:
		return "1 day"
	default:
		return fmt.Sprintf("%d days", n)
	}
}
