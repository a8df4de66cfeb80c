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

// means is what probes are made with.
type means struct {
	clock clock.Clock
	// dial connects over TCP.
	dial func(ctx context.Context, address netip.AddrPort) (net.Conn, error)
	// programs is where external checks are; nil: nowhere.
	programs *directory
}

// check is what is asked of any number of targets, with what is dear to make of it.
type check struct {
	lb.Check
	*means
	// targets counts who asks this.
	targets int
	// url is Path, of HTTP.
	url *url.URL
	// body is Body compiled; nil: any will do.
	body *regexp.Regexp
	// tls is without ServerName; nil: no TLS.
	tls *tls.Config
	// health is of gRPC.
	health *connect.Client[grpc_health_v1.HealthCheckRequest, grpc_health_v1.HealthCheckResponse]
}

// validate refuses what cannot be asked by this package at all.
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

// prepare makes ready what every probe of a check needs.
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

// http2 tells whether HTTP/2 is to be spoken.
func (c *check) http2() bool { return c.Version == lb.HTTP2 || c.Kind == lb.CheckGRPC }

// host is what the request is for: the Host header and the authority.
func (t *target) host() string {
	if t.Host != "" {
		return t.Host
	}
	if t.Kind == lb.CheckGRPC && t.ServerName != "" {
		return t.ServerName
	}
	return t.address.String()
}

// serverName is what the certificate must be for. An address is not asked for by SNI (RFC 6066 section 3).
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

// trimBrackets takes the brackets off an IPv6 address in a Host header.
func trimBrackets(s string) string {
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		return s[1 : len(s)-1]
	}
	return s
}
