package lb

import (
	"bytes"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Marshal returns objects as canonical YAML: every field with its default, one backend a line,
// documents separated by "---". Parse reads valid objects back unchanged.
func Marshal(objects ...Object) []byte {
	var w writer
	for i, o := range objects {
		if i > 0 {
			w.WriteString("---\n")
		}
		w.line("kind: %s", o.Kind())
		w.line("name: %s", quote(o.ObjectName()))
		switch o := o.(type) {
		case *Service:
			w.service(o)
		case *Node:
			w.node(o)
		case *Network:
			w.network(o)
		case *Tenant:
			w.tenant(o)
		case *Policy:
			w.policy(o)
		}
	}
	return w.Bytes()
}

// Equal reports whether two objects with defaults filled in are equal.
func Equal(a, b Object) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && bytes.Equal(Marshal(a), Marshal(b))
}

type writer struct{ bytes.Buffer }

func (w *writer) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

func (w *writer) service(s *Service) {
	w.line("tenant: %s", quote(s.Tenant))
	w.line("vip: %s", flowList(s.VIPs))
	if len(s.SNAT) > 0 {
		w.line("snat: %s", snatFlow(s.SNAT))
	}
	if s.Policy != "" {
		w.line("policy: %s", quote(s.Policy))
	}
	w.shared(s.Limits, s.Sources, s.Placement)
	if len(s.Endpoints) == 0 {
		return
	}
	w.line("endpoints:")
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		w.line("- protocol: %s", e.ProtocolName())
		w.line("  port: %s", portsFlow(e))
		w.line("  path: %s", quote(e.Path))
		w.line("  affinity: %s", quote(e.Affinity))
		w.line("  scheduler: %s", quote(e.Scheduler))
		w.choices(e)
		w.line("  rewrite: %s", quote(string(e.Rewrite)))
		w.options(e)
		w.line("  backends:")
		for _, b := range e.Backends {
			w.line("  - %s", b.flow())
		}
		w.health(&e.Health)
	}
}

// choices writes the optional fields of affinities, protocols and schedulers.
func (w *writer) choices(e *Endpoint) {
	if e.Schedule != (Schedule{}) {
		w.line("  schedule: {by: %s}", quote(e.Schedule.By))
	}
	if e.Cookie != (Cookie{}) {
		w.line("  cookie: {form: %s}", quote(e.Cookie.Form))
	}
	if e.Track {
		w.line("  track: true")
	}
	if e.QUIC != nil {
		w.line("  quic: %s", e.QUIC.flow())
	}
}

// options writes the fields of an endpoint that are mappings or seldom set.
func (w *writer) options(e *Endpoint) {
	if s := e.Source; s != nil {
		w.line("  source: %s", s.flow())
	}
	if e.OnePacket {
		w.line("  onePacket: true")
	}
	if e.Idle != (Idle{}) {
		w.line("  idle: {untrusted: %s, trusted: %s}", durationText(e.Idle.Untrusted), durationText(e.Idle.Trusted))
	}
	w.line("  fragments: %s", quote(e.Fragments))
	if e.Encap != "" {
		w.line("  encap: %s", quote(e.Encap))
	}
	w.line("  backupBelow: %d", e.BackupBelow)
	if e.FailOpen {
		w.line("  failOpen: true")
	}
	if e.Unhealthy != "" {
		w.line("  unhealthy: %s", quote(e.Unhealthy))
	}
	if e.SlowStart != 0 {
		w.line("  slowStart: %s", durationText(e.SlowStart))
	}
	if e.DrainTimeout != 0 {
		w.line("  drainTimeout: %s", durationText(e.DrainTimeout))
	}
	if e.RepairWindow != nil && *e.RepairWindow != DefaultRepairWindow {
		w.line("  repairWindow: %s", durationText(*e.RepairWindow))
	}
	if e.HostIdle != (HostIdle{}) {
		w.line("  hostIdle: %s", e.HostIdle.flow())
	}
	if e.Load != (Load{}) {
		w.line("  load: %s", e.Load.flow())
	}
}

// flow returns the times that are set on one line.
func (h HostIdle) flow() string {
	var out []string
	for _, c := range h.classes() {
		if *c.time != 0 {
			out = append(out, c.name+": "+durationText(*c.time))
		}
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// flow returns the load fields that are set on one line.
func (l Load) flow() string {
	var out []string
	if l.Asked() {
		http := []string{"path: " + quote(l.HTTP.Path)}
		if l.HTTP.Host != "" {
			http = append(http, "host: "+quote(l.HTTP.Host))
		}
		if l.HTTP.Port != 0 {
			http = append(http, fmt.Sprintf("port: %d", l.HTTP.Port))
		}
		out = append(out, "http: {"+strings.Join(http, ", ")+"}")
	}
	for _, t := range l.times() {
		if *t.time != 0 {
			out = append(out, t.name+": "+durationText(*t.time))
		}
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// flow returns the source affinity on one line.
func (s *SourceAffinity) flow() string {
	remembered := ""
	if s.For != 0 {
		remembered = ", for: " + durationText(s.For)
	}
	return fmt.Sprintf("{prefix4: %d, prefix6: %d%s}", s.Prefix4, s.Prefix6, remembered)
}

// snatFlow writes the servers of snat on one line.
func snatFlow(servers []SNATServer) string {
	texts := make([]string, len(servers))
	for i, s := range servers {
		if texts[i] = quote(addrText(s.DIP)); s.Host.IsValid() {
			texts[i] = fmt.Sprintf("{dip: %s, host: %s}", texts[i], quote(s.Host.String()))
		}
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// portsFlow writes the ports of an endpoint; only a single one is a number.
func portsFlow(e *Endpoint) string {
	if e.PortEnd == 0 {
		return fmt.Sprint(e.Port)
	}
	return strconv.Quote(PortsText(e.Port, e.PortEnd))
}

// flow returns the backend on one line.
func (b *Backend) flow() string {
	port, more := "", ""
	if b.Port != 0 {
		port = fmt.Sprintf(" port: %d,", b.Port)
	}
	if b.Drain {
		more += ", drain: true"
	}
	if b.Backup {
		more += ", backup: true"
	}
	host := ""
	if b.Host.IsValid() {
		host = " host: " + quote(b.Host.String()) + ","
	}
	return fmt.Sprintf("{dip: %s,%s%s weight: %d%s}", flowList(b.DIPs), port, host, b.Weight, more)
}

func (w *writer) node(n *Node) {
	w.line("role: %s", quote(string(n.Role)))
	if n.Zone != "" {
		w.line("zone: %s", quote(n.Zone))
	}
	w.line("address: %s", flowList(n.Addresses))
	if n.Drain {
		w.line("drain: true")
	}
	if n.Capacity != (Capacity{}) {
		w.line("capacity: %s", numbers{{"vips", uint64(n.Capacity.VIPs)}, {"packets", n.Capacity.Packets}}.flow())
	}
	if n.NAT != nil {
		w.line("nat: %s", n.NAT.flow())
	}
	if n.BGP == nil {
		return
	}
	w.line("bgp:")
	w.line("  asn: %d", n.BGP.ASN)
	if n.BGP.RouterID.IsValid() {
		w.line("  routerId: %s", quote(n.BGP.RouterID.String()))
	}
	w.line("  peers:")
	for _, p := range n.BGP.Peers {
		w.line("  - address: %s", quote(addrText(p.Address)))
		w.line("    asn: %d", p.ASN)
		if p.PasswordFile != "" {
			w.line("    passwordFile: %s", quote(p.PasswordFile))
		}
		if p.TTLSecurity != 0 {
			w.line("    ttlSecurity: %d", p.TTLSecurity)
		}
		if p.Multihop != 0 {
			w.line("    multihop: %d", p.Multihop)
		}
		if b := p.BFD; b != nil {
			w.line("    bfd: {transmit: %s, receive: %s, multiplier: %d}", durationText(b.Transmit), durationText(b.Receive), b.Multiplier)
		}
	}
}

func (w *writer) network(n *Network) {
	w.line("vips: %s", flowList(n.VIPs))
	if len(n.Underlay) > 0 {
		w.line("underlay: %s", flowList(n.Underlay))
	}
	w.line("mtu: %d", n.MTU)
	w.line("tunnelSources: %s", flowList(n.TunnelSources))
	w.line("encap: %s", quote(n.Encap))
	if len(n.Switches) > 0 {
		w.line("switches: %s", flowList(n.Switches))
	}
	if n.SNAT != (SNATTimes{}) {
		var times []string
		for _, t := range n.SNAT.fields() {
			if *t.time != 0 {
				times = append(times, t.name+": "+durationText(*t.time))
			}
		}
		w.line("snat: {%s}", strings.Join(times, ", "))
	}
}

// flowList writes addresses or prefixes in brackets.
func flowList[T netip.Addr | netip.Prefix](items []T) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = quote(fmt.Sprint(item))
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// Text that every YAML reader reads as a string.
var (
	plainForm  = regexp.MustCompile(`^([A-Za-z/][A-Za-z0-9/._-]*|[0-9]{1,3}(\.[0-9]{1,3}){3}(/[0-9]+)?)$`)
	reserved   = regexp.MustCompile(`^(?i:true|false|null|yes|no|on|off|y|n)$`)
	stillPlain = func(s string) bool { return plainForm.MatchString(s) && !reserved.MatchString(s) }
)

// quote writes a string, in double quotes unless every reader takes it for a string.
func quote(s string) string {
	if stillPlain(s) {
		return s
	}
	return strconv.Quote(s)
}
