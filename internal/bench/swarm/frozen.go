package swarm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// CredentialsFile is where an agent keeps key, certificate and CA in its state directory, PEM in
// this order.
const CredentialsFile = "node.pem"

// frozenWindow is the smallest window that an HTTP/2 client can set.
const frozenWindow = 64 << 10

// Freeze replaces the last count nodes by nodes that answer pings but read nothing after their
// first plan.
func (s *Swarm) Freeze(ctx context.Context, count int) error {
	for i := len(s.nodes) - count; i < len(s.nodes); i++ {
		n := s.nodes[i]
		n.frozen = true
		n.stop()
		<-n.done
		if err := s.freeze(ctx, i); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

func (s *Swarm) freeze(ctx context.Context, i int) error {
	cfg, err := s.tls(i)
	if err != nil {
		return err
	}
	transport := &http.Transport{
		TLSClientConfig: cfg, ForceAttemptHTTP2: true, DialContext: s.dial,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: frozenWindow, MaxReceiveBufferPerConnection: frozenWindow},
	}
	stream := shuntv1connect.NewNodeProtocolClient(&http.Client{Transport: transport}, "https://"+s.manager).Sync(ctx)
	hello := &apiv1.Hello{Name: Name(i), Role: string(lb.RoleHost), Version: "swarm"}
	if err := stream.Send(&apiv1.NodeReport{Hello: hello}); err != nil {
		_, cause := stream.Receive()
		return errors.Join(err, cause)
	}
	if _, err := stream.Receive(); err != nil {
		return err
	}
	s.frozen = append(s.frozen, closer(func() error {
		err := stream.CloseRequest()
		transport.CloseIdleConnections()
		return err
	}))
	return nil
}

type closer func() error

// Close implements io.Closer.
func (c closer) Close() error { return c() }

func (s *Swarm) tls(i int) (*tls.Config, error) {
	content, err := s.credentialsOf(i)
	if err != nil {
		return nil, err
	}
	key, rest := pem.Decode(content)
	cert, rest := pem.Decode(rest)
	if key == nil || cert == nil {
		return nil, errors.New("credentials: must hold key, certificate and CA")
	}
	pair, err := tls.X509KeyPair(pem.EncodeToMemory(cert), pem.EncodeToMemory(key))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(rest)
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: pki.ServerName, Certificates: []tls.Certificate{pair}}, nil
}
