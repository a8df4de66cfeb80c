package worker

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// failing is a health service that returns an error.
type failing struct {
	grpc_health_v1.UnimplementedHealthServer
	err error
}

func (f failing) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return nil, f.err
}

// serveGRPC runs a server of gRPC's own library.
func serveGRPC(t *testing.T, service grpc_health_v1.HealthServer, options ...grpc.ServerOption) net.Listener {
	t.Helper()
	server := grpc.NewServer(options...)
	if service != nil {
		grpc_health_v1.RegisterHealthServer(server, service)
	}
	l := listen4(t)
	t.Cleanup(server.Stop)
	go func() { _ = server.Serve(l) }()
	return l
}

// serveHTTP2 runs an HTTP/2 server without gRPC.
func serveHTTP2(t *testing.T, handler http.HandlerFunc) net.Listener {
	t.Helper()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: &protocols, Handler: handler}
	l := listen4(t)
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(l) }()
	return l
}

func grpcCheck(change func(*lb.Check)) lb.Check {
	c := lb.Check{Kind: lb.CheckGRPC, Timeout: long, Interval: long}
	if change != nil {
		change(&c)
	}
	c.SetDefaults()
	return c
}

// TestGRPC checks the text of the finding for each answer of a health service.
func TestGRPC(t *testing.T) {
	ca := newAuthority(t)
	known := health.NewServer()
	known.SetServingStatus("up", grpc_health_v1.HealthCheckResponse_SERVING)
	known.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	known.SetServingStatus("odd", grpc_health_v1.HealthCheckResponse_UNKNOWN)
	plain := serveGRPC(t, known)
	cert := ca.usual(t)
	secure := serveGRPC(t, known, grpc.Creds(credentials.NewServerTLSFromCert(&cert)))
	of := func(service string) func(*lb.Check) { return func(c *lb.Check) { c.Service = service } }
	overTLS := func(c *lb.Check) { c.TLS, c.Verify, c.CA, c.ServerName = true, true, ca.pem, "www.example" }
	cases := []struct {
		name    string
		server  net.Listener
		change  func(*lb.Check)
		verdict probe.Verdict
		words   string
	}{
		{"server", plain, nil, probe.Good, "gRPC: SERVING"},
		{"service", plain, of("up"), probe.Good, "gRPC: SERVING"},
		{"not serving", plain, of("down"), probe.Bad, "gRPC: NOT_SERVING"},
		{"unknown state", plain, of("odd"), probe.Bad, "gRPC: UNKNOWN"},
		{"unknown service", plain, of("x"), probe.Bad, `gRPC: the server does not know the service "x"`},
		{"TLS", secure, overTLS, probe.Good, "gRPC: SERVING"},
		{"other name", secure, func(c *lb.Check) { overTLS(c); c.ServerName = "else.example" }, probe.Bad, "certificate is for www.example, not for else.example"},
		{"plain to TLS", plain, overTLS, probe.Bad, "TLS: server speaks something else"},
		{"no health service", serveGRPC(t, nil), nil, probe.Bad, "gRPC: the server has no health service"},
		{"error", serveGRPC(t, failing{err: status.Error(codes.Unavailable, "come\nback")}), nil, probe.Bad, "gRPC: unavailable: come?back"},
		{"says it is late", serveGRPC(t, failing{err: status.Error(codes.DeadlineExceeded, "late")}), nil, probe.Bad, "gRPC: deadline_exceeded: late"},
		{"503", serveHTTP2(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }), nil, probe.Bad, "gRPC: status 503"},
		{"web page", serveHTTP2(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "hello")
		}), nil,
			probe.Bad, `connected, but no gRPC answer: invalid content-type: "text/html"; expecting "application/grpc"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			expectAnswer(t, ask(t, grpcCheck(c.change), addressOf(c.server)), c.verdict, c.words)
		})
	}
	t.Run("HTTP/1.1", func(t *testing.T) {
		at := serve(t, func(c net.Conn) {
			defer c.Close()
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			waitGone(c)
		})
		expectAnswer(t, ask(t, grpcCheck(nil), at), probe.Bad, "no HTTP/2")
	})
}
