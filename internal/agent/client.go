package agent

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
)

// Limits of a connection to the manager.
const (
	// maxPlanBytes: a snapshot of 65,536 endpoints with 32 members of 100 bytes is 210 MB.
	maxPlanBytes = 256 << 20
	joinTimeout  = 10 * time.Second
	// pingAfter, more or less a quarter, and pingTimeout find a manager that is frozen or gone without a word: within 2.5 to
	// 3.25 seconds, not by all nodes at once.
	pingAfter   = 1750 * time.Millisecond
	pingTimeout = 1200 * time.Millisecond
	// dialTimeout and handshakeTimeout bound an attempt. A frozen manager's kernel still accepts; one that all nodes come
	// back to at once takes seconds for a handshake.
	dialTimeout      = 3 * time.Second
	handshakeTimeout = 5 * time.Second
)

// client is one connection to a manager.
type client struct {
	shuntv1connect.NodeProtocolClient
	transport *http.Transport
}

func newClient(o *Options, address string, cfg *tls.Config) *client {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return dial(ctx, network, addr)
		},
		TLSClientConfig: cfg, ForceAttemptHTTP2: true, TLSHandshakeTimeout: handshakeTimeout,
		HTTP2: &http.HTTP2Config{SendPingTimeout: jitter(pingAfter), PingTimeout: pingTimeout},
	}
	return &client{
		NodeProtocolClient: shuntv1connect.NewNodeProtocolClient(&http.Client{Transport: t}, "https://"+address, connect.WithReadMaxBytes(maxPlanBytes)),
		transport:          t,
	}
}

func (c *client) close() { c.transport.CloseIdleConnections() }
