package main

import (
	"fmt"
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
)

// health writes an endpoint's health checks, and the meaning of verdicts where it is not the
// default.
func (d *description) health(h *lb.Health) {
	for i := range h.Checks {
		d.printf("  check: %s\n", checkText(&h.Checks[i]))
	}
	if text := healthText(h); text != "" {
		d.printf("  health: %s\n", text)
	}
}

// healthText returns the meaning of verdicts as text. It is empty if muxes check, all checks must
// pass, and nothing else is set.
func healthText(h *lb.Health) string {
	var out []string
	switch {
	case h.Combine == lb.CombineAtLeast:
		out = append(out, fmt.Sprintf("%d of %d checks must be good", h.AtLeast, len(h.Checks)))
	case len(h.Checks) > 1 && h.Combine == lb.CombineAny:
		out = append(out, "any check must be good")
	case len(h.Checks) > 1:
		out = append(out, "all checks must be good")
	}
	switch h.From {
	case lb.FromHost:
		out = append(out, "hosts check")
	case lb.FromBoth:
		out = append(out, "hosts and muxes check")
	}
	if h.PanicBelow > 0 {
		out = append(out, fmt.Sprintf("all backends count as healthy below %d %%", h.PanicBelow))
	}
	if h.MinimumHealthy > 1 {
		out = append(out, fmt.Sprintf("advertised with at least %d healthy", h.MinimumHealthy))
	}
	if o := h.Damping; o != nil {
		out = append(out, fmt.Sprintf("held down for %s after more than %d flips within %s", o.Hold, o.Flips, o.Within))
	}
	if o := h.Passive; o != nil {
		out = append(out, fmt.Sprintf("dead for %s after %d failed connections of clients within %s", o.Hold, o.Failures, o.Within))
	}
	return strings.Join(out, ", ")
}

// checkText returns a health check as text.
func checkText(c *lb.Check) string {
	what := askedText(c)
	switch {
	case c.Address.IsValid() && c.Port != 0:
		what += " at " + backendText(c.Address.String(), uint32(c.Port))
	case c.Address.IsValid():
		what += " at " + c.Address.String()
	case c.Port != 0:
		what += fmt.Sprintf(" at port %d", c.Port)
	}
	if c.Through == lb.ThroughTunnel {
		what += " through the tunnel"
	}
	if c.Engine != "" {
		what += " by " + c.Engine
	}
	every := c.Interval.String()
	if c.Fast != 0 {
		every += fmt.Sprintf(" (%s while results change)", c.Fast)
	}
	text := fmt.Sprintf("%s every %s, timeout %s; up after %d good, down after %d bad", what, every, c.Timeout, c.Rise, c.Fall)
	if c.Initial == lb.InitialUp {
		text += ", up at first"
	}
	return text
}

// askedText returns the request of a check and the expected response where that is not the default.
func askedText(c *lb.Check) string {
	switch c.Kind {
	case lb.CheckTCP:
		if !c.Talks() {
			return "TCP connect"
		}
		return "TCP" + exchangeText(c)
	case lb.CheckHTTP:
		what := strings.ToUpper(c.KindText())
		if c.Version != lb.HTTP1 {
			what += "/" + c.Version
		}
		what += " " + c.Method + " " + c.Path
		if c.Host != "" {
			what += " with host " + c.Host
		}
		switch n := len(c.Headers.List()); n {
		case 0:
		case 1:
			what += " with a header"
		default:
			what += fmt.Sprintf(" with %d headers", n)
		}
		if c.Status != lb.DefaultHealthStatus {
			what += " for status " + string(c.Status)
		}
		if c.Body != "" {
			what += fmt.Sprintf(" for body %q", c.Body)
		}
		return what + tlsText(c)
	case lb.CheckICMP:
		return "ICMP echo"
	case lb.CheckGRPC:
		what := "gRPC health"
		if c.Service != "" {
			what += " of " + c.Service
		}
		if c.TLS {
			what += " over TLS"
		}
		return what + tlsText(c)
	case lb.CheckUDP:
		return "UDP" + exchangeText(c)
	case lb.CheckDNS:
		what := "DNS " + c.Type + " of " + c.Name
		if c.Answer != "" {
			what += fmt.Sprintf(" for %q", c.Answer)
		}
		return what
	case lb.CheckExternal:
		return strings.Join(append([]string{"program " + c.Program}, quoted(c.Arguments.List())...), " ")
	}
	return c.Kind
}

func exchangeText(c *lb.Check) string {
	return payloadText("send", c.Send, c.SendHex) + payloadText("expect", c.Expect, c.ExpectHex)
}

func payloadText(verb, text, digits string) string {
	switch {
	case text != "":
		return fmt.Sprintf(" %s %q", verb, text)
	case digits != "":
		return fmt.Sprintf(" %s hex %s", verb, digits)
	}
	return ""
}

func tlsText(c *lb.Check) (text string) {
	if !c.TLS {
		return ""
	}
	if c.ServerName != "" {
		text += " as " + c.ServerName
	}
	switch {
	case !c.Verify:
		text += " without verification"
	case c.CA != "":
		text += " with its own CA"
	}
	return text
}

func quoted(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = fmt.Sprintf("%q", s)
	}
	return out
}
