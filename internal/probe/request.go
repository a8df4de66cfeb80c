package probe

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
)

// Request returns the HTTP/1.1 request of a check as it is sent (RFC 9112), in two parts. If the
// check names no Host, the value of the Host header, as AppendHost formats it, goes between them.
// Otherwise before is the whole request.
func Request(c *lb.Check) (before, after string, err error) {
	u, err := url.ParseRequestURI(c.Path)
	if err != nil {
		return "", "", fmt.Errorf("path: %w", err)
	}
	var rest strings.Builder
	own := map[string]string{"User-Agent": "shunt", "Accept": "*/*", "Connection": "close"}
	for name, value := range c.Headers.All {
		for known := range own {
			if strings.EqualFold(known, name) {
				delete(own, known)
			}
		}
		fmt.Fprintf(&rest, "%s: %s\r\n", name, value)
	}
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: ", c.Method, u.RequestURI())
	var tail strings.Builder
	tail.WriteString("\r\n")
	for _, name := range []string{"User-Agent", "Accept", "Connection"} {
		if value, kept := own[name]; kept {
			fmt.Fprintf(&tail, "%s: %s\r\n", name, value)
		}
	}
	tail.WriteString(rest.String() + "\r\n")
	if c.Host != "" {
		return head + c.Host + tail.String(), "", nil
	}
	return head, tail.String(), nil
}

// AppendHost appends the Host header's value for an address.
func AppendHost(to []byte, a netip.AddrPort) []byte {
	return netip.AddrPortFrom(a.Addr().WithZone(""), a.Port()).AppendTo(to)
}
