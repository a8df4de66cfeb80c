package worker

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// call is one request over one connection. The client, which a check shares, finds it in the
// context.
type call struct {
	target *target
	client *http.ClientConn
	// status is the HTTP status, 0 before there is one.
	status int
}

type callKey struct{}

// overCall sends each request over the connection of its call.
type overCall struct{}

// Do implements connect.HTTPClient.
func (overCall) Do(r *http.Request) (*http.Response, error) {
	c := r.Context().Value(callKey{}).(*call)
	r.URL.Scheme, r.URL.Host, r.Host = c.target.scheme(), c.target.host(), c.target.host()
	answer, err := c.client.RoundTrip(r)
	if err == nil {
		c.status = answer.StatusCode
	}
	return answer, err
}

// newHealth returns a client of gRPC's health service. overCall replaces the scheme and host of its
// URL by those of each call.
func newHealth() *connect.Client[grpc_health_v1.HealthCheckRequest, grpc_health_v1.HealthCheckResponse] {
	return connect.NewClient[grpc_health_v1.HealthCheckRequest, grpc_health_v1.HealthCheckResponse](
		overCall{}, "http://health"+grpc_health_v1.Health_Check_FullMethodName,
		connect.WithGRPC(), connect.WithReadMaxBytes(maxHead))
}

// askGRPC queries the server's own health service.
func (t *target) askGRPC(ctx context.Context) finding {
	conn, hangUp, failed := t.connect(ctx)
	if failed != nil {
		return *failed
	}
	defer hangUp()
	client, watched, err := t.client2(ctx, conn)
	if err != nil {
		return t.noAnswer2(ctx, err, watched)
	}
	c := &call{target: t, client: client}
	request := connect.NewRequest(&grpc_health_v1.HealthCheckRequest{Service: t.Service})
	request.Header().Set("User-Agent", userAgent)
	answer, err := t.health.CallUnary(context.WithValue(ctx, callKey{}, c), request)
	if err != nil {
		return t.noHealth(ctx, err, c, watched)
	}
	if status := answer.Msg.GetStatus(); status != grpc_health_v1.HealthCheckResponse_SERVING {
		return bad("gRPC: %s", status)
	}
	return good("gRPC: SERVING")
}

// noHealth returns the finding for the error of a call.
func (t *target) noHealth(ctx context.Context, err error, c *call, conn *watchedConn) finding {
	code := connect.CodeOf(err)
	var said *connect.Error
	switch {
	case !errors.As(err, &said), c.status == 0:
		return t.noAnswer2(ctx, err, conn)
	case c.status != http.StatusOK:
		return bad("gRPC: status %d", c.status)
	case connect.IsWireError(err) && code == connect.CodeNotFound:
		return bad("gRPC: the server does not know the service %q", t.Service)
	case connect.IsWireError(err) && code == connect.CodeUnimplemented:
		return bad("gRPC: the server has no health service")
	case connect.IsWireError(err):
		return bad("gRPC: %s: %s", code, said.Message())
	case isTimeout(err), ctx.Err() != nil:
		return noAnswer(ctx, err, t.Timeout, "gRPC")
	}
	return bad("connected, but no gRPC answer: %s", said.Message())
}
