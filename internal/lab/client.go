package lab

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/netdev"
)

// AdminConfig is the client configuration that the lab's manager made for its administrator.
func (l *Lab) AdminConfig() string { return filepath.Join(l.nodeDir("manager1"), "data", "admin.yaml") }

// Client speaks to the lab's manager as its administrator, from inside the manager's namespace. It fails as long as the
// manager has not written its configuration.
func (l *Lab) Client() (shuntv1connect.ManagerClient, error) {
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
	transport := &http.Transport{
		DialContext:       netdev.Dialer(Node{Name: "manager1"}.Namespace(l.Topology.Name)),
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13},
		ForceAttemptHTTP2: true,
	}
	return shuntv1connect.NewManagerClient(&http.Client{Transport: transport}, admin.Server), nil
}
