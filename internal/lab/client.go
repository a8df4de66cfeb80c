package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/pki"
)

// AdminConfig returns the client configuration that the lab's first manager made for its
// administrator.
func (l *Lab) AdminConfig() string { return filepath.Join(l.managerData("manager1"), "admin.yaml") }

// Access holds the data to reach a lab's managers from anywhere on the machine.
type Access struct {
	// AdminConfig is the client configuration of the lab's administrator. Its only server is the
	// first manager.
	AdminConfig string
	// Servers are the URLs of all managers, in order.
	Servers []string
	// Namespace is the network namespace to dial from: the router's, which outlives every manager.
	Namespace string
}

// FindAccess reads Access from the lab's directory. The error is an fs.ErrNotExist if there is no
// such lab.
func FindAccess(name string) (Access, error) {
	s, err := loadState(name)
	if err != nil {
		return Access{}, err
	}
	l := &Lab{Topology: s.Topology}
	a := Access{AdminConfig: l.AdminConfig(), Namespace: Node{Name: "router1"}.Namespace(name)}
	for _, n := range l.Topology.managers() {
		a.Servers = append(a.Servers, "https://"+managerAddress(n))
	}
	return a, nil
}

// Client returns a client of the lab's managers as their administrator, from the router. Each
// connection goes to the first manager that accepts it. Client fails until the first manager has
// written its configuration.
func (l *Lab) Client() (shuntv1connect.ManagerClient, error) {
	return l.clientOf(l.Topology.managers())
}

// ClientOf returns a client of one manager.
func (l *Lab) ClientOf(name string) (shuntv1connect.ManagerClient, error) {
	n, err := l.manager(name)
	if err != nil {
		return nil, err
	}
	return l.clientOf([]Node{n})
}

func (l *Lab) clientOf(managers []Node) (shuntv1connect.ManagerClient, error) {
	text, err := os.ReadFile(l.AdminConfig())
	if err != nil {
		return nil, err
	}
	var admin struct {
		Server string `yaml:"server"`
		CA     string `yaml:"ca"`
		Cert   string `yaml:"cert"`
		Key    string `yaml:"key"`
	}
	if err := yaml.Unmarshal(text, &admin); err != nil {
		return nil, fmt.Errorf("read %s: %w", l.AdminConfig(), err)
	}
	cert, err := tls.X509KeyPair([]byte(admin.Cert), []byte(admin.Key))
	if err != nil {
		return nil, fmt.Errorf("read %s: cert and key: %w", l.AdminConfig(), err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(admin.CA)) {
		return nil, errors.New("read " + l.AdminConfig() + ": ca: no certificate in it")
	}
	config := &tls.Config{
		RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, ServerName: pki.ServerName, NextProtos: []string{"h2"},
	}
	transport := &http.Transport{
		DialTLSContext:    dialFirst(netdev.Dialer(Node{Name: "router1"}.Namespace(l.Topology.Name)), config, managers),
		ForceAttemptHTTP2: true,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	return shuntv1connect.NewManagerClient(&http.Client{Transport: transport}, admin.Server), nil
}

// A frozen manager keeps its connections, and pings detect it.
const (
	dialTimeout = time.Second
	pingAfter   = time.Second
	pingTimeout = time.Second
)

// ErrNotReached means that a manager accepted no connection, and so nothing was sent to it.
var ErrNotReached = errors.New("not reached")

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// dialFirst connects to the first manager that completes the TLS handshake, whatever address is
// requested. The kernel of a frozen manager still accepts connections.
func dialFirst(dial dialer, config *tls.Config, managers []Node) dialer {
	one := func(ctx context.Context, network string, n Node) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		raw, err := dial(ctx, network, managerAddress(n))
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", n.Name, ErrNotReached, err)
		}
		conn := tls.Client(raw, config)
		if err := conn.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, fmt.Errorf("%s: %w: %w", n.Name, ErrNotReached, err)
		}
		return conn, nil
	}
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		var errs []error
		for _, n := range managers {
			conn, err := one(ctx, network, n)
			if err == nil {
				return conn, nil
			}
			errs = append(errs, err)
		}
		return nil, errors.Join(errs...)
	}
}
