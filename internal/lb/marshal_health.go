package lb

import (
	"fmt"
	"strconv"
	"strings"
)

// pairs holds the fields of a mapping on one line, "name: value".
type pairs []string

func (p *pairs) add(name, value string) { *p = append(*p, name+": "+value) }

// text adds a string unless it equals the default.
func (p *pairs) text(name, value, missing string) {
	if value != missing {
		p.add(name, quote(value))
	}
}

func (p pairs) flow() string { return "{" + strings.Join(p, ", ") + "}" }

// health writes a single check on the line of health, and several checks one per line.
func (w *writer) health(h *Health) {
	if len(h.Checks) == 1 {
		w.line("  health: %s", append(h.Checks[0].fields(), h.options()...).flow())
		return
	}
	w.line("  health:")
	w.line("    checks:")
	for i := range h.Checks {
		w.line("    - %s", h.Checks[i].fields().flow())
	}
	for _, o := range h.options() {
		w.line("    %s", o)
	}
}

// options returns the fields of health beyond the checks that differ from their defaults.
func (h *Health) options() pairs {
	var p pairs
	if h.Combine == CombineAtLeast {
		p.add("combine", fmt.Sprintf("{atLeast: %d}", h.AtLeast))
	} else {
		p.text("combine", h.Combine, CombineAll)
	}
	p.text("from", h.From, FromMux)
	if h.PanicBelow != 0 {
		p.add("panicBelow", fmt.Sprint(h.PanicBelow))
	}
	if h.MinimumHealthy != 0 {
		p.add("minimumHealthy", fmt.Sprint(h.MinimumHealthy))
	}
	if d := h.Damping; d != nil {
		p.add("damping", fmt.Sprintf("{flips: %d, within: %s, hold: %s}", d.Flips, durationText(d.Within), durationText(d.Hold)))
	}
	if o := h.Passive; o != nil {
		p.add("passive", fmt.Sprintf("{failures: %d, within: %s, hold: %s}", o.Failures, durationText(o.Within), durationText(o.Hold)))
	}
	return p
}

// Text returns the check on one line, as in canonical YAML.
func (c *Check) Text() string { return c.fields().flow() }

func (c *Check) fields() pairs {
	var p pairs
	p.add(c.KindText(), c.kindFields().flow())
	p.add("interval", durationText(c.Interval))
	p.add("timeout", durationText(c.Timeout))
	if c.Fast != 0 {
		p.add("fast", durationText(c.Fast))
	}
	if c.Jitter != DefaultHealthJitter {
		p.add("jitter", fmt.Sprint(c.Jitter))
	}
	p.add("rise", fmt.Sprint(c.Rise))
	p.add("fall", fmt.Sprint(c.Fall))
	p.text("initial", c.Initial, InitialDown)
	if c.Port != 0 {
		p.add("port", fmt.Sprint(c.Port))
	}
	if c.Address.IsValid() {
		p.add("address", quote(c.Address.String()))
	}
	// Always written, because the default depends on the endpoint.
	p.add("through", quote(c.Through))
	p.text("engine", c.Engine, "")
	return p
}

// kindFields returns the fields of the mapping after the check's kind.
func (c *Check) kindFields() pairs {
	var p pairs
	switch c.Kind {
	case CheckHTTP:
		p.add("path", quote(c.Path))
		p.text("host", c.Host, "")
		p.text("method", c.Method, DefaultHealthMethod)
		if c.Headers != "" {
			var headers pairs
			for name, value := range c.Headers.All {
				headers.add(quote(name), quote(value))
			}
			p.add("headers", headers.flow())
		}
		if c.Status != DefaultHealthStatus {
			p.add("status", flowTexts(c.Status.List()))
		}
		p.text("body", c.Body, "")
		p.text("version", c.Version, HTTP1)
		if c.TLS {
			p = append(p, c.tlsFields()...)
		}
	case CheckTCP, CheckUDP:
		p.text("send", c.Send, "")
		p.text("expect", c.Expect, "")
		p.text("sendHex", c.SendHex, "")
		p.text("expectHex", c.ExpectHex, "")
	case CheckGRPC:
		p.text("service", c.Service, "")
		if c.TLS {
			p.add("tls", c.tlsFields().flow())
		}
	case CheckDNS:
		p.add("name", quote(c.Name))
		p.add("type", quote(c.Type))
		p.text("answer", c.Answer, "")
	case CheckExternal:
		p.add("program", quote(c.Program))
		if c.Arguments != "" {
			p.add("arguments", flowTexts(c.Arguments.List()))
		}
	}
	return p
}

func (c *Check) tlsFields() pairs {
	var p pairs
	p.text("serverName", c.ServerName, "")
	p.text("ca", c.CA, "")
	if !c.Verify {
		p.add("verify", strconv.FormatBool(c.Verify))
	}
	return p
}

// flowTexts writes strings in brackets.
func flowTexts(list []string) string {
	texts := make([]string, len(list))
	for i, s := range list {
		texts[i] = quote(s)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
