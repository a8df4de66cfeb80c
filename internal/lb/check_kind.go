package lb

import "encoding/hex"

// KindHTTPS is how HTTP with TLS is written; its Check.Kind is CheckHTTP.
const KindHTTPS = "https"

// CheckKinds are the kinds of checks as they are written, in the order of the documentation.
var CheckKinds = []string{CheckTCP, CheckHTTP, KindHTTPS, CheckICMP, CheckGRPC, CheckUDP, CheckDNS, CheckExternal}

// KindText is the kind as it is written.
func (c *Check) KindText() string {
	if c.Kind == CheckHTTP && c.TLS {
		return KindHTTPS
	}
	return c.Kind
}

// HasPort tells whether what is asked has a port.
func (c *Check) HasPort() bool { return c.Kind != CheckICMP }

// Plain tells whether packets alone can ask it, without a connection of the kernel: a TCP handshake, or one small request of
// HTTP/1.1 whose answer's status line says everything.
func (c *Check) Plain() bool {
	switch c.Kind {
	case CheckTCP:
		return !c.Talks()
	case CheckHTTP:
		return !c.TLS && c.Version == HTTP1 && c.Body == "" && (c.Method == "GET" || c.Method == "HEAD")
	}
	return false
}

// Talks tells whether TCP or UDP sends something, or waits for an answer that holds something.
func (c *Check) Talks() bool { return c.Send+c.SendHex+c.Expect+c.ExpectHex != "" }

// Sent are the bytes that are sent first, Expected those that the answer must hold; empty for none.
func (c *Check) Sent() string { return payload(c.Send, c.SendHex) }

// Expected: see Sent.
func (c *Check) Expected() string { return payload(c.Expect, c.ExpectHex) }

// payload is text, or else what the digits stand for; what is not valid stands for nothing.
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

// own is the check with those of its fields that its kind has.
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
