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
	// pingAfter, plus or minus a quarter, and pingTimeout detect a manager that is frozen or gone
	// without closing the connection: within 2.5 to 3.25 seconds, and not by all nodes at the same
	// time.
	pingAfter   = 1750 * time.Millisecond
	pingTimeout = 1200 * time.Millisecond
	// alonePingTimeout is for a single manager. There is no other one to go to, and giving up a
	// slow connection makes that manager slower.
	alonePingTimeout = 10 * time.Second
	// dialTimeout and handshakeTimeout bound an attempt. A manager to which all nodes reconnect
	// needs seconds for a handshake, and the work for one that is given up is lost.
	dialTimeout      = 3 * time.Second
	handshakeTimeout = 20 * time.Second
)

// client is one connection to a manager.
type client struct {
	shuntv1connect.NodeProtocolClient
	transport *http.Transport
}

// dialer returns a dial function with a timeout.
func dialer(o *Options) func(ctx context.Context, network, address string) (net.Conn, error) {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		return dial(ctx, network, addr)
	}
}

func newClient(o *Options, address string, cfg *tls.Config) *client {
	return clientBy(&http.Transport{DialContext: dialer(o), TLSClientConfig: cfg, TLSHandshakeTimeout: handshakeTimeout}, address)
}

// clientOn returns a client on the existing connection conn only.
func clientOn(conn *tls.Conn, address string, alone bool) *client {
	c := clientBy(&http.Transport{DialTLSContext: once(conn)}, address)
	if alone {
		c.transport.HTTP2.PingTimeout = alonePingTimeout
	}
	return c
}

func clientBy(t *http.Transport, address string) *client {
	t.ForceAttemptHTTP2 = true
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: jitter(pingAfter), PingTimeout: pingTimeout}
	return &client{
		NodeProtocolClient: shuntv1connect.NewNodeProtocolClient(&http.Client{Transport: t}, "https://"+address, connect.WithReadMaxBytes(maxPlanBytes)),
		transport:          t,
	}
}

func (c *client) close() { c.transport.CloseIdleConnections() }
