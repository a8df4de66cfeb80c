package lb

import (
	"net/netip"
	"slices"
	"time"
)

// Health configures how the backends of an endpoint are checked, and how results affect the
// endpoint.
type Health struct {
	// Checks are the checks of each backend: 1 to MaxChecks.
	Checks []Check
	// Combine selects how many of several checks must pass for a backend to be healthy: CombineAll,
	// CombineAny or CombineAtLeast.
	Combine string
	// AtLeast is the number of checks that must pass with CombineAtLeast; else 0.
	AtLeast uint8
	// From selects who checks: FromMux, FromHost or FromBoth.
	From string
	// PanicBelow is the healthy share of weight, in percent, below which all backends are treated
	// as healthy; 0: never.
	PanicBelow uint8
	// MinimumHealthy is how many backends with weight must be healthy before muxes advertise the
	// VIP; 0 counts as 1.
	MinimumHealthy uint16
	// Damping keeps flapping backends down; nil: off.
	Damping *Damping
	// Passive uses the results of clients' own connections on hosts as evidence; nil: off. Needs
	// hosts that check.
	Passive *Passive
}

// Damping keeps a flapping backend down: one that came up more than Flips times within Within stays
// down for Hold after the last time it went down.
type Damping struct {
	Flips        uint16
	Within, Hold time.Duration
}

// Passive declares a backend dead for Hold once Failures connections of clients in a row, all
// within Within, were refused or not answered.
type Passive struct {
	Failures     uint16
	Within, Hold time.Duration
}

// ByMux reports whether muxes check, whatever hosts report.
func (h *Health) ByMux() bool { return h.From != FromHost }

// ByHost reports whether the backends' hosts check.
func (h *Health) ByHost() bool { return h.From == FromHost || h.From == FromBoth }

// Check is one check of a backend. It is comparable: equal checks of one address are probed once.
// Fields that its Kind does not have are zero.
type Check struct {
	// Kind is CheckICMP, CheckTCP, CheckHTTP, CheckGRPC, CheckUDP, CheckDNS or CheckExternal.
	Kind string

	// Path, Method, Host (the Host header; empty: the address), Headers, Status and Body are for
	// HTTP.
	Path, Method, Host string
	Headers            Headers
	// Status is the set of good status codes.
	Status StatusSet
	// Body, when not empty, is a regular expression (RE2) that the first MaxCheckBody bytes of the
	// response body must match.
	Body string
	// Version is the HTTP version: HTTP1 or HTTP2.
	Version string

	// TLS is for HTTP and gRPC; Verify, ServerName and CA apply only with it.
	TLS bool
	// Verify: the certificate must be valid for ServerName and issued by CA, or by a CA that the
	// machine trusts when that is empty.
	Verify bool
	// ServerName is sent in TLS (SNI) and must be in the certificate; empty: Host, else the
	// address.
	ServerName string
	// CA is one or more certificates in PEM.
	CA string

	// Send is sent first over TCP or UDP. Expect must be in the response.
	Send, Expect string
	// SendHex and ExpectHex are the same as bytes, two lower-case hexadecimal digits each; at most
	// one of either pair is set. Sent and Expected return the one that is set.
	SendHex, ExpectHex string

	// Service is the service in the request to gRPC's health service; empty: the whole server.
	Service string

	// Name and Type are the DNS question; Answer, when not empty, must be in the data of the
	// answers.
	Name, Type, Answer string

	// Program is the path of an external check, Arguments its arguments.
	Program   string
	Arguments Arguments

	// Port is the port to probe; 0: the backend's.
	Port uint16
	// Address is the address to probe; zero: the backend's.
	Address netip.Addr

	// Interval is the time between the beginnings of two probes; Fast, when not 0, replaces it
	// while the results change.
	Interval, Fast time.Duration
	// Timeout bounds the whole probe.
	Timeout time.Duration
	// Jitter is the share of the interval, in percent, by which the time between probes varies.
	Jitter uint8
	// Rise good probes in a row bring a dead backend up, Fall bad ones a live one down.
	Rise, Fall uint32
	// Initial is the state of a backend before its first probe: InitialDown (the first good probe
	// brings it up), InitialUp.
	Initial string
	// Through is the path of probes: ThroughDirect, to the backend's address, or ThroughTunnel, to
	// the VIP in the tunnel that client packets take. A mux that cannot send a probe through the
	// tunnel, or cannot interpret its response, probes directly and reports that.
	Through string
	// Engine selects the prober: EnginePacket or EngineSocket; empty: the safe one for the kind.
	Engine string
}

// The values of Check's and Health's choices.
const (
	CheckICMP     = "icmp"
	CheckTCP      = "tcp"
	CheckHTTP     = "http"
	CheckGRPC     = "grpc"
	CheckUDP      = "udp"
	CheckDNS      = "dns"
	CheckExternal = "external"

	HTTP1 = "1.1"
	HTTP2 = "2"

	CombineAll     = "all"
	CombineAny     = "any"
	CombineAtLeast = "at-least"

	InitialDown = "down"
	InitialUp   = "up"

	ThroughDirect = "direct"
	ThroughTunnel = "tunnel"

	EnginePacket = "packet"
	EngineSocket = "socket"

	FromMux  = "mux"
	FromHost = "host"
	FromBoth = "both"
)

// Limits of checks.
const (
	// MaxChecks is the maximum number of checks of an endpoint.
	MaxChecks = 8
	// MaxCheckBody is how much of a response body is read, in bytes.
	MaxCheckBody = 64 << 10
)

// Defaults of checks' fields.
const (
	DefaultHealthPath     = "/"
	DefaultHealthMethod   = "GET"
	DefaultHealthStatus   = StatusSet("200-399")
	DefaultDNSType        = "A"
	DefaultHealthInterval = time.Second
	DefaultHealthTimeout  = 500 * time.Millisecond
	DefaultHealthJitter   = 10
	DefaultHealthRise     = 2
	DefaultHealthFall     = 3

	DefaultDampingFlips  = 5
	DefaultDampingWithin = 5 * time.Minute
	DefaultDampingHold   = time.Minute

	DefaultPassiveFailures = 5
	DefaultPassiveWithin   = 10 * time.Second
	DefaultPassiveHold     = 30 * time.Second
)

// SetDefaults sets the defaults of unset fields. Through becomes ThroughDirect, because only the
// endpoint determines another path.
func (h *Health) SetDefaults() {
	h.setDefaults()
	for i := range h.Checks {
		setDefault(&h.Checks[i].Through, ThroughDirect)
	}
}

// setDefaults sets the defaults of unset fields except Check.Through, whose default depends on the
// endpoint.
func (h *Health) setDefaults() {
	if len(h.Checks) == 0 {
		h.Checks = []Check{{}}
	}
	setDefault(&h.Combine, CombineAll)
	setDefault(&h.From, FromMux)
	for i := range h.Checks {
		h.Checks[i].setDefaults()
	}
	if d := h.Damping; d != nil {
		setDefault(&d.Flips, DefaultDampingFlips)
		setDefault(&d.Within, DefaultDampingWithin)
		setDefault(&d.Hold, DefaultDampingHold)
	}
	if p := h.Passive; p != nil {
		setDefault(&p.Failures, DefaultPassiveFailures)
		setDefault(&p.Within, DefaultPassiveWithin)
		setDefault(&p.Hold, DefaultPassiveHold)
	}
}

// SetDefaults sets the defaults of unset fields except Check.Verify, for which false is a value.
func (c *Check) SetDefaults() {
	c.setDefaults()
	setDefault(&c.Through, ThroughDirect)
}

// setDefaults sets the defaults of unset fields except Through.
func (c *Check) setDefaults() {
	setDefault(&c.Kind, CheckTCP)
	c.setKindDefaults()
	c.setTimingDefaults()
}

// setTimingDefaults sets the defaults of the fields that checks of all kinds have, except Through.
func (c *Check) setTimingDefaults() {
	setDefault(&c.Interval, DefaultHealthInterval)
	setDefault(&c.Timeout, min(DefaultHealthTimeout, c.Interval))
	setDefault(&c.Jitter, DefaultHealthJitter)
	setDefault(&c.Rise, DefaultHealthRise)
	setDefault(&c.Fall, DefaultHealthFall)
	setDefault(&c.Initial, InitialDown)
}

// setKindDefaults sets the defaults of the fields that only the kind has.
func (c *Check) setKindDefaults() {
	switch c.Kind {
	case CheckHTTP:
		setDefault(&c.Path, DefaultHealthPath)
		setDefault(&c.Method, DefaultHealthMethod)
		setDefault(&c.Status, DefaultHealthStatus)
		setDefault(&c.Version, HTTP1)
	case CheckDNS:
		setDefault(&c.Type, DefaultDNSType)
	}
}

func defaultHealth() Health {
	var h Health
	h.setDefaults()
	return h
}

// Equal reports whether both are equal; it compares the values of pointers.
func (h *Health) Equal(o Health) bool {
	return slices.Equal(h.Checks, o.Checks) && h.Combine == o.Combine && h.AtLeast == o.AtLeast && h.From == o.From &&
		h.PanicBelow == o.PanicBelow && h.MinimumHealthy == o.MinimumHealthy && same(h.Damping, o.Damping) && same(h.Passive, o.Passive)
}

// same reports whether both are nil or point to equal values.
func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }
