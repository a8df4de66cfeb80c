package agent

import (
	"crypto/tls"
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
	// pingAfter and pingTimeout find a manager that is gone without a word.
	pingAfter   = 3 * time.Second
	pingTimeout = 5 * time.Second
)

// client is one connection to the manager.
type client struct {
	shuntv1connect.NodeProtocolClient
	transport *http.Transport
}

func newClient(o *Options, cfg *tls.Config) *client {
	t := &http.Transport{
		DialContext: o.Dial, TLSClientConfig: cfg, ForceAttemptHTTP2: true, TLSHandshakeTimeout: pingTimeout,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	return &client{
		NodeProtocolClient: shuntv1connect.NewNodeProtocolClient(&http.Client{Transport: t}, "https://"+o.Manager, connect.WithReadMaxBytes(maxPlanBytes)),
		transport:          t,
	}
}

func (c *client) close() { c.transport.CloseIdleConnections() }
