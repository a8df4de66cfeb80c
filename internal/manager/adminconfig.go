package manager

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
)

// writeAdminConfig creates DATA/admin.yaml if it is absent, and rewrites it when its certificate
// has lived two thirds of its lifetime or when the CAs changed. Its server is always this manager's
// address. first reports whether the file was absent.
func (m *Manager) writeAdminConfig(now time.Time) (first bool, err error) {
	path := m.o.Dir.AdminConfig()
	old, err := readFile(path)
	if err != nil {
		return false, fmt.Errorf("read admin configuration: %w", err)
	}
	first = old == nil
	cas := m.secrets.cas()
	if old != nil && adminCertLasts(old, cas, now) {
		content := serverLine.ReplaceAllLiteral(old, []byte("server: "+serverURL(m.o)))
		if bytes.Equal(content, old) {
			return false, nil
		}
		return false, writeAdmin(path, content)
	}
	cert, key, err := m.secrets.ca().Client("admin", pki.RoleAdmin, pki.AdminLifetime, now)
	if err != nil {
		return first, err
	}
	comment := "Client configuration of an administrator: whoever reads this file may do everything."
	return first, writeAdmin(path, pki.ClientConfig(comment, []string{serverURL(m.o)}, pki.BundlePEM(cas), cert, key))
}

// renewAdminEvery is the interval at which the administrator's certificate is checked. It is
// renewed when a third of its year is left.
const renewAdminEvery = 24 * time.Hour

// renewAdmin keeps the administrator's configuration valid while the manager runs.
func (m *Manager) renewAdmin(ctx context.Context) {
	for {
		select {
		case <-m.o.Clock.After(renewAdminEvery):
		case <-ctx.Done():
			return
		}
		if _, err := m.writeAdminConfig(m.o.Clock.Now()); err != nil {
			m.o.Log.Warn("cannot renew the administrator's certificate", "error", err)
		}
	}
}

// serverLine matches the only line of the file that depends on --advertise and --listen.
var serverLine = regexp.MustCompile(`(?m)^server: .*$`)

func writeAdmin(path string, content []byte) error {
	if err := writeFile(path, content); err != nil {
		return fmt.Errorf("write admin configuration: %w", err)
	}
	return nil
}

// adminCertLasts reports whether a configuration lists exactly the CAs in cas, and whether its
// certificate is signed by the current CA, cas[0], and keeps more than a third of its lifetime.
func adminCertLasts(config []byte, cas []*x509.Certificate, now time.Time) bool {
	_, rest, _ := strings.Cut(string(config), "\ncert:")
	block, _ := pem.Decode([]byte(strings.ReplaceAll(rest, "\n  ", "\n")))
	if block == nil {
		return false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.NotAfter.Sub(now) <= pki.AdminLifetime/3 || !pki.SignedBy(cert, cas[0]) {
		return false
	}
	before, _, _ := strings.Cut(string(config), "\ncert:")
	_, text, _ := strings.Cut(before, "\nca:")
	has, err := pki.ParseCerts([]byte(strings.ReplaceAll(text, "\n  ", "\n")))
	return err == nil && pki.Same(has, cas)
}

// serverURL returns the URL at which clients reach this manager.
func serverURL(o Options) string { return "https://" + apiAddress(o) }

// apiAddress returns the host:port at which nodes, clients and other members reach this manager.
func apiAddress(o Options) string {
	addr := o.Advertise
	if addr == "" {
		addr = o.Listen
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = addr, "8443"
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if addrs := interfaceAddrs(); len(addrs) > 0 {
			host = addrs[0].String()
		}
	}
	return net.JoinHostPort(host, port)
}
