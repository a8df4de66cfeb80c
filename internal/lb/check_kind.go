package lb

import "encoding/hex"

// KindHTTPS is the written kind of HTTP with TLS; its Check.Kind is CheckHTTP.
const KindHTTPS = "https"

// CheckKinds lists the written kinds of checks, in the order of the documentation.
var CheckKinds = []string{CheckTCP, CheckHTTP, KindHTTPS, CheckICMP, CheckGRPC, CheckUDP, CheckDNS, CheckExternal}

// KindText returns the written kind.
func (c *Check) KindText() string {
	if c.Kind == CheckHTTP && c.TLS {
		return KindHTTPS
	}
	return c.Kind
}

// HasPort reports whether the check has a port.
func (c *Check) HasPort() bool { return c.Kind != CheckICMP }

// Plain reports whether packets alone can make the check, without a connection of the kernel: a TCP
// handshake, or one small HTTP/1.1 request whose status line is the whole result.
func (c *Check) Plain() bool {
	switch c.Kind {
	case CheckTCP:
		return !c.Talks()
	case CheckHTTP:
		return !c.TLS && c.Version == HTTP1 && c.Body == "" && (c.Method == "GET" || c.Method == "HEAD")
	}
	return false
}

// Talks reports whether a TCP or UDP check sends data or expects data.
func (c *Check) Talks() bool { return c.Send+c.SendHex+c.Expect+c.ExpectHex != "" }

// Sent returns the bytes to send first; empty for none.
func (c *Check) Sent() string { return payload(c.Send, c.SendHex) }

// Expected returns the bytes that the response must contain; empty for none.
func (c *Check) Expected() string { return payload(c.Expect, c.ExpectHex) }

// payload returns text, or else the decoded digits; empty if they are invalid.
func payload(text, digits string) string {
	if text != "" {
		return text
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return ""
	}
	return string(b)
}

// own returns the check without the fields of other kinds.
func (c *Check) own() Check {
	out := Check{
		Kind: c.Kind, Port: c.Port, Address: c.Address, Interval: c.Interval, Fast: c.Fast, Timeout: c.Timeout, Jitter: c.Jitter,
		Rise: c.Rise, Fall: c.Fall, Initial: c.Initial, Through: c.Through, Engine: c.Engine,
	}
	switch c.Kind {
	case CheckHTTP:
		out.Path, out.Method, out.Host, out.Headers = c.Path, c.Method, c.Host, c.Headers
		out.Status, out.Body, out.Version = c.Status, c.Body, c.Version
	case CheckTCP, CheckUDP:
		out.Send, out.Expect, out.SendHex, out.ExpectHex = c.Send, c.Expect, c.SendHex, c.ExpectHex
	case CheckGRPC:
		out.Service = c.Service
	case CheckDNS:
		out.Name, out.Type, out.Answer = c.Name, c.Type, c.Answer
	case CheckExternal:
		out.Program, out.Arguments = c.Program, c.Arguments
	}
	if out.TLS = c.TLS && (c.Kind == CheckHTTP || c.Kind == CheckGRPC); out.TLS {
		out.Verify, out.ServerName, out.CA = c.Verify, c.ServerName, c.CA
	}
	return out
}
