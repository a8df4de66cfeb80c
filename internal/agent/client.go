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
	// alonePingTimeout is for the only manager there is: nobody else is there to go to, and a connection that is given up
	// because it is slow makes it slower.
	alonePingTimeout = 10 * time.Second
	// dialTimeout and handshakeTimeout bound an attempt. A manager that all nodes come back to at once takes seconds for a
	// handshake; what was done for one that is given up is lost.
	dialTimeout      = 3 * time.Second
	handshakeTimeout = 20 * time.Second
)

// client is one connection to a manager.
type client struct {
	shuntv1connect.NodeProtocolClient
	transport *http.Transport
}

// dialer opens TCP connections in bounded time.
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

// clientOn is a client on a connection that is there, and on no other.
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
