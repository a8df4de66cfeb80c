package lb

import (
	"fmt"
	"maps"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// The YAML schema of health checks. A check's kind is a key of its mapping; health with one check
// is also that check's mapping.

func (d *decoder) health(path string, n ast.Node, h *Health) {
	base := Check{}
	var checks ast.Node
	fields := append(d.kinds(&base), d.timing(&base)...)
	fields = append(fields,
		field{"checks", func(_ string, n ast.Node) { checks = n }},
		field{"combine", func(p string, n ast.Node) { d.combine(path, p, n, h) }},
		field{"from", func(p string, n ast.Node) { h.From = d.text(p, n) }},
		field{"panicBelow", func(p string, n ast.Node) { h.PanicBelow = uint8(d.number(p, n, 8, allowedShare)) }},
		field{"minimumHealthy", func(p string, n ast.Node) { h.MinimumHealthy = uint16(d.number(p, n, 16, allowedMinimum)) }},
		field{"damping", func(p string, n ast.Node) { h.Damping = d.damping(p, n) }},
		field{"passive", func(p string, n ast.Node) { h.Passive = d.passive(p, n) }},
	)
	seen := d.mapping(path, n, fields...)
	d.oneKind(path, seen)
	if checks == nil {
		base.finish(seen)
		h.Checks = []Check{base}
		return
	}
	for _, kind := range CheckKinds {
		if seen[kind] {
			d.add(path+"."+kind, "", "must be left out beside checks, or be one of them")
		}
	}
	d.checks(path, checks, h, base, seen)
}

// checks reads several checks. beside has the fields that checks inherit, given names those that
// are set.
func (d *decoder) checks(path string, n ast.Node, h *Health, beside Check, given map[string]bool) {
	at, taken := path+".checks", map[string]bool{}
	h.Checks = nil
	d.list(at, n, func(p string, n ast.Node) {
		var c Check
		seen := d.mapping(p, n, append(d.kinds(&c), d.timing(&c)...)...)
		d.oneKind(p, seen)
		if seen != nil && c.Kind == "" && !d.has(p) {
			d.add(p, "", "must have a kind: "+strings.Join(CheckKinds, ", "))
		}
		c.inherit(&beside, taken, func(f sharedField) bool { return seen[f.name] })
		written := maps.Clone(seen)
		for name := range given {
			if written != nil {
				written[name] = true
			}
		}
		c.finish(written)
		h.Checks = append(h.Checks, c)
	})
	for _, name := range Unused(&beside, taken) {
		if len(h.Checks) > 0 && !d.has(join(path, name)) {
			d.add(join(path, name), "", AllowedBeside)
		}
	}
	switch len(h.Checks) {
	case 0:
		if !d.hasUnder(at) {
			d.add(at, "", "must have at least one check")
		}
		h.Checks = []Check{beside}
		h.Checks[0].finish(nil)
	case 1:
		// A single check is equivalent to the fields of health itself.
		d.alias(at+"[0]", path)
	}
}

// alias gives every field below path from a second path below to, unless that path is written
// itself.
func (d *decoder) alias(from, to string) {
	added := map[string]place{}
	for path, at := range d.places {
		if rest, ok := strings.CutPrefix(path, from+"."); ok {
			added[to+"."+rest] = at
		}
	}
	for path, at := range added {
		d.places[path] = at
	}
}

// finish sets the defaults of fields that are not written, except those of the kind. A written zero
// stays, so that validation refuses it.
func (c *Check) finish(written map[string]bool) {
	setDefault(&c.Kind, CheckTCP)
	before := *c
	c.setTimingDefaults()
	for _, f := range sharedFields {
		if written[f.name] {
			f.take(c, &before)
		}
	}
}

// oneKind adds a fault if a check has several kinds.
func (d *decoder) oneKind(path string, seen map[string]bool) {
	var kinds []string
	for _, kind := range CheckKinds {
		if seen[kind] {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) > 1 {
		d.add(path, "", fmt.Sprintf("must have %s, not both", strings.Join(kinds[:2], " or ")))
	}
}

// timing returns the fields that checks of all kinds have.
func (d *decoder) timing(c *Check) []field {
	return []field{
		{"interval", func(p string, n ast.Node) { c.Interval = d.duration(p, n) }},
		{"timeout", func(p string, n ast.Node) { c.Timeout = d.duration(p, n) }},
		{"fast", func(p string, n ast.Node) { c.Fast = d.span(p, n, allowedFast) }},
		{"jitter", func(p string, n ast.Node) { c.Jitter = uint8(d.number(p, n, 8, allowedJitter)) }},
		{"rise", func(p string, n ast.Node) { c.Rise = uint32(d.number(p, n, 32, allowedCount)) }},
		{"fall", func(p string, n ast.Node) { c.Fall = uint32(d.number(p, n, 32, allowedCount)) }},
		{"initial", func(p string, n ast.Node) { c.Initial = d.text(p, n) }},
		{"port", func(p string, n ast.Node) { c.Port = d.port(p, n) }},
		{"address", func(p string, n ast.Node) { c.Address = d.addr(p, n) }},
		{"through", func(p string, n ast.Node) { c.Through = d.given(p, n, anyOf(ThroughDirect, ThroughTunnel)) }},
		{"engine", func(p string, n ast.Node) { c.Engine = d.given(p, n, anyOf(EnginePacket, EngineSocket)) }},
	}
}

// kinds returns the keys of which a check may have one.
func (d *decoder) kinds(c *Check) []field {
	kind := func(name string, fields func() []field) field {
		return field{name, func(p string, n ast.Node) {
			c.Kind = name
			if name == KindHTTPS {
				c.Kind, c.TLS, c.Verify = CheckHTTP, true, true
			}
			c.setKindDefaults()
			d.mapping(p, n, fields()...)
		}}
	}
	messages := func() []field {
		return []field{
			d.payload("send", &c.Send), d.payload("expect", &c.Expect), d.payloadHex("sendHex", &c.SendHex), d.payloadHex("expectHex", &c.ExpectHex),
		}
	}
	return []field{
		kind(CheckTCP, messages),
		kind(CheckHTTP, func() []field { return d.http(c) }),
		kind(KindHTTPS, func() []field { return append(d.http(c), d.tls(c)...) }),
		kind(CheckICMP, func() []field { return nil }),
		kind(CheckGRPC, func() []field {
			return []field{
				{"service", func(p string, n ast.Node) { c.Service = d.given(p, n, allowedService) }},
				{"tls", func(p string, n ast.Node) {
					c.TLS, c.Verify = true, true
					d.mapping(p, n, d.tls(c)...)
				}},
			}
		}),
		kind(CheckUDP, messages),
		kind(CheckDNS, func() []field {
			return []field{
				{"name", func(p string, n ast.Node) { c.Name = d.given(p, n, allowedDNSName) }},
				{"type", func(p string, n ast.Node) { c.Type = d.text(p, n) }},
				{"answer", func(p string, n ast.Node) { c.Answer = d.given(p, n, allowedAnswer) }},
			}
		}),
		kind(CheckExternal, func() []field {
			return []field{
				{"program", func(p string, n ast.Node) { c.Program = d.given(p, n, allowedProgram) }},
				{"arguments", func(p string, n ast.Node) { c.Arguments = d.arguments(p, n) }},
			}
		}),
	}
}

func (d *decoder) http(c *Check) []field {
	return []field{
		{"path", func(p string, n ast.Node) { c.Path = d.text(p, n) }},
		{"host", func(p string, n ast.Node) { c.Host = d.text(p, n) }},
		{"method", func(p string, n ast.Node) { c.Method = d.text(p, n) }},
		{"headers", func(p string, n ast.Node) { c.Headers = d.headers(p, n) }},
		{"status", func(p string, n ast.Node) { c.Status = d.statuses(p, n) }},
		{"body", func(p string, n ast.Node) { c.Body = d.given(p, n, allowedBody) }},
		{"version", func(p string, n ast.Node) { c.Version = d.text(p, n) }},
	}
}

func (d *decoder) tls(c *Check) []field {
	return []field{
		{"serverName", func(p string, n ast.Node) { c.ServerName = d.given(p, n, allowedServerName) }},
		{"ca", func(p string, n ast.Node) { c.CA = d.block(p, n, allowedCA) }},
		{"verify", func(p string, n ast.Node) { c.Verify = d.boolean(p, n) }},
	}
}

// payload returns a field for data to send or expect.
func (d *decoder) payload(name string, to *string) field {
	return field{name, func(p string, n ast.Node) { *to = d.block(p, n, allowedPayload) }}
}

// payloadHex reads digits in either case.
func (d *decoder) payloadHex(name string, to *string) field {
	return field{name, func(p string, n ast.Node) { *to = strings.ToLower(d.given(p, n, allowedHex)) }}
}

// block reads a string that is not empty, of any number of lines.
func (d *decoder) block(path string, n ast.Node, allowed string) string {
	if l, ok := n.(*ast.LiteralNode); ok && l.Value != nil {
		d.note(path, n)
		n = l.Value
	}
	return d.given(path, n, allowed)
}

// headers reads a mapping of names to values.
func (d *decoder) headers(path string, n ast.Node) (out Headers) {
	entries, ok := n.(*ast.MappingNode)
	if !ok {
		d.wrongType(path, n, "must be a mapping of names to values")
		return ""
	}
	for _, entry := range entries.Values {
		name := show(entry.Key)
		at := join(path, clip(name))
		d.note(at, entry.Value)
		value := d.text(at, entry.Value)
		if !d.has(at) {
			d.check(at, value, out.Add(name, value))
		}
	}
	return out
}

// statuses reads codes and ranges.
func (d *decoder) statuses(path string, n ast.Node) StatusSet {
	var list []string
	d.listOrOne(path, n, func(p string, n ast.Node) {
		switch n.(type) {
		case *ast.StringNode, *ast.IntegerNode:
			list = append(list, show(n))
			_, allowed := parseStatus(show(n))
			d.check(p, show(n), allowed)
		default:
			d.wrongType(p, n, allowedStatus)
		}
	})
	if len(list) == 0 && !d.hasUnder(path) {
		d.add(path, "", "must have at least one status")
	}
	set, _, _ := NewStatusSet(list)
	return set
}

func (d *decoder) arguments(path string, n ast.Node) Arguments {
	var list []string
	d.list(path, n, func(p string, n ast.Node) {
		list = append(list, d.text(p, n))
		d.check(p, list[len(list)-1], wrongArgument(list[len(list)-1]))
	})
	out, _ := NewArguments(list)
	return out
}

// combine reads a keyword, or the number of checks that must pass.
func (d *decoder) combine(health, path string, n ast.Node, h *Health) {
	if _, ok := n.(*ast.MappingNode); !ok {
		if s, ok := n.(*ast.StringNode); !ok || s.Value != CombineAll && s.Value != CombineAny {
			d.wrongType(path, n, allowedCombine)
			return
		}
		h.Combine = n.(*ast.StringNode).Value
		return
	}
	h.Combine = CombineAtLeast
	seen := d.mapping(path, n, field{"atLeast", func(p string, n ast.Node) {
		h.AtLeast = d.positive(p, n, fmt.Sprintf("must be 1 to %d", MaxChecks))
		d.note(health+".atLeast", n)
	}})
	if !seen["atLeast"] && !d.hasUnder(path) {
		d.add(path, "", allowedCombine)
	}
}

func (d *decoder) damping(path string, n ast.Node) *Damping {
	o := &Damping{DefaultDampingFlips, DefaultDampingWithin, DefaultDampingHold}
	d.mapping(path, n,
		field{"flips", func(p string, n ast.Node) { o.Flips = uint16(d.counting(p, n, 16, allowedFlips)) }},
		field{"within", func(p string, n ast.Node) { o.Within = d.span(p, n, allowedWithin) }},
		field{"hold", func(p string, n ast.Node) { o.Hold = d.span(p, n, allowedHold) }},
	)
	return o
}

func (d *decoder) passive(path string, n ast.Node) *Passive {
	o := &Passive{DefaultPassiveFailures, DefaultPassiveWithin, DefaultPassiveHold}
	d.mapping(path, n,
		field{"failures", func(p string, n ast.Node) { o.Failures = uint16(d.counting(p, n, 16, allowedFailures)) }},
		field{"within", func(p string, n ast.Node) { o.Within = d.span(p, n, allowedWithin) }},
		field{"hold", func(p string, n ast.Node) { o.Hold = d.span(p, n, allowedHold) }},
	)
	return o
}
