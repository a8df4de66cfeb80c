package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/pki"
)

// callTimeout bounds every call except watches.
const callTimeout = 30 * time.Second

// client calls the managers, one at a time.
type client struct {
	shuntv1connect.ManagerClient
	servers *servers
	config  *clientConfig
	// idle closes idle connections.
	idle func()
}

// connect returns a client of the configured managers. It does not dial yet.
func (g *globals) connect() (*client, error) {
	c, err := g.load()
	if err != nil {
		return nil, err
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool(), ServerName: pki.ServerName}
	bearer, err := c.credentials()
	if err != nil {
		return nil, err
	}
	if !tlsConfig.RootCAs.AppendCertsFromPEM([]byte(c.CA)) {
		return nil, fmt.Errorf("%s: ca: must be a certificate in PEM", c.file)
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := tls.X509KeyPair([]byte(c.Cert), []byte(c.Key))
		if err != nil {
			return nil, fmt.Errorf("%s: cert and key: %w", c.file, err)
		}
		tlsConfig.Certificates = []tls.Certificate{pair}
		g.warnExpiry(c.file, pair.Leaf)
	}
	transport := &http.Transport{
		TLSClientConfig:     tlsConfig,
		ForceAttemptHTTP2:   true,
		DialContext:         bounded(netdev.Dialer(c.namespace)),
		TLSHandshakeTimeout: handshakeTimeout,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	servers, err := newServers(c.Server, transport)
	if err != nil {
		return nil, err
	}
	// Do not follow redirects: the API has none, and one would send the token to another server.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	hc := &http.Client{Transport: bearerTransport{servers, bearer}, CheckRedirect: stay}
	persist := connect.WithInterceptors(connect.UnaryInterceptorFunc(servers.unary))
	return &client{shuntv1connect.NewManagerClient(hc, c.Server[0], persist), servers, c, transport.CloseIdleConnections}, nil
}

// call makes a client, runs do with it and bounds the time.
func (g *globals) call(ctx context.Context, do func(context.Context, *client) error) error {
	c, err := g.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.explain(do(ctx, c))
}

// explain turns an error of a call into one that a user can act on: one line per violation, or the
// server and its error.
func (c *client) explain(err error) error {
	var call *connect.Error
	if !errors.As(err, &call) {
		return err
	}
	if none := (tokenError{}); errors.As(err, &none) {
		return none.error
	}
	if faults := violations(call); len(faults) > 0 {
		return &lb.Error{Violations: faults}
	}
	var lost lostAnswer
	var none *unreachable
	switch {
	case errors.As(err, &lost) && lost.read:
		return fmt.Errorf("the connection to a manager broke before it answered: %w", lost)
	case errors.As(err, &lost):
		return fmt.Errorf("the connection to a manager broke before it answered, and the change may have been made or not: %w", lost)
	case errors.As(err, &none) && len(c.servers.urls) > 1:
		return fmt.Errorf("no manager can be reached: %w", none)
	}
	switch call.Code() {
	case connect.CodeUnavailable:
		switch {
		case noLeader(err):
			return fmt.Errorf("manager %s: %s, and nothing was changed", c.servers, call.Message())
		case connect.IsWireError(err):
			return fmt.Errorf("manager %s: cannot answer now, and a change may have been made or not: %s", c.servers, call.Message())
		}
		return fmt.Errorf("manager %s: cannot be reached: %s", c.servers, call.Message())
	case connect.CodeDeadlineExceeded:
		return fmt.Errorf("manager %s: no answer within %s", c.servers, callTimeout)
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeFailedPrecondition, connect.CodeAborted:
		return errors.New(call.Message())
	}
	return fmt.Errorf("manager %s: %s: %s", c.servers, strings.ReplaceAll(call.Code().String(), "_", " "), call.Message())
}

// violations returns the faults that the manager found.
func violations(err *connect.Error) []lb.Violation {
	var faults []lb.Violation
	for _, detail := range err.Details() {
		value, decode := detail.Value()
		if v, ok := value.(*apiv1.Violation); decode == nil && ok {
			faults = append(faults, lb.Violation{Field: v.GetField(), Value: v.GetValue(), Allowed: v.GetAllowed()})
		}
	}
	return faults
}
