package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"unique"

	"connectrpc.com/connect"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// means holds the dependencies of all probes.
type means struct {
	clock clock.Clock
	// dial connects over TCP.
	dial func(ctx context.Context, address netip.AddrPort) (net.Conn, error)
	// programs holds the programs of external checks; nil: there are none.
	programs *directory
}

// check is a check with the values prepared from it, shared by its targets because they are costly
// to make.
type check struct {
	lb.Check
	*means
	// targets counts the targets with this check.
	targets int
	// url is Path; HTTP only.
	url *url.URL
	// body is Body compiled; nil: any body is accepted.
	body *regexp.Regexp
	// tls is the configuration without ServerName; nil: no TLS.
	tls *tls.Config
	// health is the client for gRPC.
	health *connect.Client[grpc_health_v1.HealthCheckRequest, grpc_health_v1.HealthCheckResponse]
}

// validate returns an error for targets that this package cannot probe at all.
func validate(t probe.Target) error {
	if t.Check == (unique.Handle[lb.Check]{}) {
		return errors.New("check: must be one")
	}
	c := t.Check.Value()
	switch {
	case c.Through == lb.ThroughTunnel || t.Tunnel != (unique.Handle[probe.Tunnel]{}):
		return fmt.Errorf("through: %q: sockets ask directly only", lb.ThroughTunnel)
	case c.Timeout <= 0:
		return fmt.Errorf("timeout: %v: must be above 0", c.Timeout)
	case !t.Address.IsValid(), t.Address.Port() == 0 && c.Kind != lb.CheckExternal:
		return fmt.Errorf("address: %v: must be an address with a port", t.Address)
	}
	return nil
}

// prepare returns a check with the values that its probes share.
func prepare(c lb.Check, m *means) (*check, error) {
	p := &check{Check: c, means: m}
	var err error
	switch c.Kind {
	case lb.CheckTCP:
		return p, nil
	case lb.CheckExternal:
		if m.programs == nil {
			return nil, fmt.Errorf("program: %q: external checks are not allowed: --check-programs is not given", c.Program)
		}
		_, err = m.programs.find(c.Program)
		if err != nil {
			return nil, err
		}
		return p, nil
	case lb.CheckGRPC:
		p.health = newHealth()
	case lb.CheckHTTP:
		if p.url, err = url.ParseRequestURI(c.Path); err != nil {
			return nil, fmt.Errorf("path: %q: must be a path, with a query or without", c.Path)
		}
		if c.Version != lb.HTTP1 && c.Version != lb.HTTP2 {
			return nil, fmt.Errorf("version: %q: must be %q or %q", c.Version, lb.HTTP1, lb.HTTP2)
		}
		if c.Body != "" {
			if p.body, err = regexp.Compile(c.Body); err != nil {
				return nil, fmt.Errorf("body: %q: must be a regular expression: %w", c.Body, err)
			}
		}
	default:
		return nil, fmt.Errorf("kind: %q: must be %s, %s, %s or %s", c.Kind, lb.CheckTCP, lb.CheckHTTP, lb.CheckGRPC, lb.CheckExternal)
	}
	if c.TLS {
		p.tls, err = tlsConfig(c, m.clock)
	}
	return p, err
}

// http2 reports whether the check uses HTTP/2.
func (c *check) http2() bool { return c.Version == lb.HTTP2 || c.Kind == lb.CheckGRPC }

// host returns the Host header and the authority of the request.
func (t *target) host() string {
	if t.Host != "" {
		return t.Host
	}
	if t.Kind == lb.CheckGRPC && t.ServerName != "" {
		return t.ServerName
	}
	return t.address.String()
}

// serverName returns the name that the certificate must be valid for. An address is not sent by SNI
// (RFC 6066 section 3).
func (t *target) serverName() string {
	switch {
	case t.ServerName != "":
		return t.ServerName
	case t.Host == "":
		return t.address.Addr().WithZone("").String()
	}
	if name, _, err := net.SplitHostPort(t.Host); err == nil {
		return name
	}
	if a, err := netip.ParseAddr(trimBrackets(t.Host)); err == nil {
		return a.String()
	}
	return t.Host
}

// trimBrackets removes the brackets from an IPv6 address in a Host header.
func trimBrackets(s string) string {
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		return s[1 : len(s)-1]
	}
	return s
}
