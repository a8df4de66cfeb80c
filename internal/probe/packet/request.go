package packet

import (
	"fmt"
	"net/netip"
	"net/textproto"
	"net/url"
	"strings"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
)

// request returns the request to a server at an address, empty for TCP, or an error if the check
// cannot be made by packets.
func request(c *lb.Check, address netip.AddrPort) ([]byte, error) {
	switch {
	case c.Engine == lb.EngineSocket:
		return nil, fmt.Errorf("engine: %q: not by packets", c.Engine)
	case c.Kind == lb.CheckTCP && !c.Talks() && !c.TLS:
		return nil, nil
	case c.Kind == lb.CheckTCP:
		return nil, fmt.Errorf("send, expect: not by packets")
	case c.Kind != lb.CheckHTTP:
		return nil, fmt.Errorf("kind: %q: not by packets", c.Kind)
	case c.TLS:
		return nil, fmt.Errorf("tls: not by packets")
	case c.Version != lb.HTTP1 && c.Version != "":
		return nil, fmt.Errorf("version: %q: not by packets", c.Version)
	case c.Body != "":
		return nil, fmt.Errorf("body: not by packets")
	case c.Method != "GET" && c.Method != "HEAD" && c.Method != "":
		return nil, fmt.Errorf("method: %q: not by packets", c.Method)
	}
	method, host := c.Method, c.Host
	if method == "" {
		method = lb.DefaultHealthMethod
	}
	if host == "" {
		host = address.String()
	}
	u, err := url.ParseRequestURI(c.Path)
	if err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, u.RequestURI(), host)
	given := map[string]bool{}
	for name, value := range c.Headers.All {
		key := textproto.CanonicalMIMEHeaderKey(name)
		switch key {
		case "Host", "Connection", "Content-Length", "Transfer-Encoding", "Expect", "Upgrade":
			return nil, fmt.Errorf("header %s: not by packets", key)
		}
		given[key] = true
		fmt.Fprintf(&b, "%s: %s\r\n", name, value)
	}
	if !given["User-Agent"] {
		b.WriteString("User-Agent: shunt\r\n")
	}
	if !given["Accept"] {
		b.WriteString("Accept: */*\r\n")
	}
	b.WriteString("Connection: close\r\n\r\n")
	if b.Len() > dataplane.ProbeRequestMax {
		return nil, fmt.Errorf("request: %d bytes: at most %d by packets", b.Len(), dataplane.ProbeRequestMax)
	}
	return []byte(b.String()), nil
}
