package manager

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/pki"
)

// serverCert is the API's certificate. It lives in memory only and is made anew long before it expires.
type serverCert struct {
	ca    *pki.CA
	clock clock.Clock
	names []string
	addrs []net.IP

	mu   sync.Mutex
	cert *tls.Certificate
}

// newServerCert makes a certificate for every way to reach this manager: the advertised and listened addresses, the
// host's name, and the addresses of its interfaces.
func newServerCert(ca *pki.CA, o Options, now time.Time) (*serverCert, error) {
	s := &serverCert{ca: ca, clock: o.Clock, names: []string{"localhost"}, addrs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}}
	if host, err := os.Hostname(); err == nil {
		s.names = append(s.names, host)
	}
	for _, addr := range []string{o.Listen, o.Advertise} {
		host, _, err := net.SplitHostPort(addr)
		if err != nil || host == "" {
			continue
		}
		if ip := net.ParseIP(host); ip == nil {
			s.names = append(s.names, host)
		} else if !ip.IsUnspecified() {
			s.addrs = append(s.addrs, ip)
		}
	}
	s.addrs = append(s.addrs, interfaceAddrs()...)
	var err error
	s.cert, err = ca.Server(s.names, s.addrs, now)
	return s, err
}

// interfaceAddrs are this machine's addresses but for loopback and link-local ones.
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

// config is the server's side of TLS. Clients without a certificate get in only to join.
func (s *serverCert) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs:  s.ca.Pool(),
		// A resumed session would outlive a deleted node's certificate check at the handshake.
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.current() },
	}
}

func (s *serverCert) current() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if s.cert.Leaf.NotAfter.Sub(now) > pki.ServerLifetime/3 {
		return s.cert, nil
	}
	cert, err := s.ca.Server(s.names, s.addrs, now)
	if err != nil {
		return nil, fmt.Errorf("renew server certificate: %w", err)
	}
	s.cert = cert
	return cert, nil
}
