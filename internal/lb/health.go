package lb

import (
	"net/netip"
	"slices"
	"time"
)

// Health is how the backends of an endpoint are checked, and what the verdicts mean for the endpoint.
type Health struct {
	// Checks are what each backend is asked: 1 to MaxChecks.
	Checks []Check
	// Combine says which of several checks must be good for a backend to be healthy: CombineAll, CombineAny or CombineAtLeast.
	Combine string
	// AtLeast is how many must be, with CombineAtLeast; else 0.
	AtLeast uint8
	// From says who checks: FromMux, FromHost or FromBoth.
	From string
	// PanicBelow is the healthy share of weight, in percent, below which all backends are treated as healthy; 0: never.
	PanicBelow uint8
	// MinimumHealthy is how many backends with weight must be healthy before muxes advertise the VIP; 0 counts as 1.
	MinimumHealthy uint16
	// Damping keeps backends out that flap; nil: none are.
	Damping *Damping
	// Passive takes what hosts see of the clients' own connections for evidence; nil: it is none. Needs hosts that check.
	Passive *Passive
}

// Damping keeps a backend down that flaps: one that came up more than Flips times within Within stays down for Hold after the
// last time it went down.
type Damping struct {
	Flips        uint16
	Within, Hold time.Duration
}

// Passive declares a backend dead for Hold once Failures connections of clients in a row, all within Within, were refused or not
// answered.
type Passive struct {
	Failures     uint16
	Within, Hold time.Duration
}

// ByMux tells whether muxes check whatever hosts say.
func (h *Health) ByMux() bool { return h.From != FromHost }

// ByHost tells whether the backends' hosts check.
func (h *Health) ByHost() bool { return h.From == FromHost || h.From == FromBoth }

// Check is one thing that is asked of a backend. It is comparable: equal checks of one address are asked once. Fields that its
// Kind does not have are zero.
type Check struct {
	// Kind is CheckICMP, CheckTCP, CheckHTTP, CheckGRPC, CheckUDP, CheckDNS or CheckExternal.
	Kind string

	// Path, Method, Host (the Host header; empty: the address), Headers, Status and Body are of HTTP.
	Path, Method, Host string
	Headers            Headers
	// Status is what answers are good.
	Status StatusSet
	// Body, when not empty, is a regular expression (RE2) that the first MaxCheckBody bytes of the answer's body must match.
	Body string
	// Version is the protocol of HTTP: HTTP1 or HTTP2.
	Version string

	// TLS of HTTP and gRPC; Verify, ServerName and CA count only then.
	TLS bool
	// Verify: the certificate must be valid for ServerName and come from CA, or from what the machine trusts when that is empty.
	Verify bool
	// ServerName is what TLS asks for (SNI) and what the certificate must be for; empty: Host, else the address.
	ServerName string
	// CA is one or more certificates in PEM.
	CA string

	// Send is what is sent first over TCP or UDP, Expect what the answer must hold.
	Send, Expect string
	// SendHex and ExpectHex are the same as bytes, two lower-case hexadecimal digits each; at most one of either pair is there.
	// Sent and Expected are what counts.
	SendHex, ExpectHex string

	// Service is what gRPC's health service is asked for; empty: the whole server.
	Service string

	// Name and Type are what DNS is asked for; Answer, when not empty, must be among the answers' data.
	Name, Type, Answer string

	// Program is the path of an external check, Arguments what it gets.
	Program   string
	Arguments Arguments

	// Port to ask; 0: the backend's.
	Port uint16
	// Address to ask; zero: the backend's.
	Address netip.Addr

	// Interval between the beginnings of two probes; Fast, when not 0, instead of it while the results change.
	Interval, Fast time.Duration
	// Timeout bounds the whole probe.
	Timeout time.Duration
	// Jitter is the share of the interval, in percent, by which the distance of probes varies.
	Jitter uint8
	// Rise good probes in a row bring a dead backend up, Fall bad ones a live one down.
	Rise, Fall uint32
	// Initial is what a backend is before it was asked: InitialDown (the first good probe brings it up), InitialUp.
	Initial string
	// Through is the way of probes: ThroughDirect, to the backend's address, or ThroughTunnel, to the VIP in the tunnel that the
	// packets of clients take. A mux that cannot send a probe through the tunnel, or not tell what its answer means, makes it directly and says so.
	Through string
	// Engine is who asks: EnginePacket or EngineSocket; empty: what is safe for the kind.
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
	// MaxChecks is how many checks an endpoint may have.
	MaxChecks = 8
	// MaxCheckBody is how much of an answer's body is looked at, in bytes.
	MaxCheckBody = 64 << 10
)

// Values of checks' fields that are not given.
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

// SetDefaults fills in what is not given. Checks go directly where nothing is given: only the endpoint knows another way.
func (h *Health) SetDefaults() {
	h.setDefaults()
	for i := range h.Checks {
		setDefault(&h.Checks[i].Through, ThroughDirect)
	}
}

// setDefaults fills in what is not given but Check.Through, whose default depends on the endpoint.
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

// SetDefaults fills in what is not given. Check.Verify is left alone: false is a value.
func (c *Check) SetDefaults() {
	c.setDefaults()
	setDefault(&c.Through, ThroughDirect)
}

// setDefaults fills in what is not given but Through.
func (c *Check) setDefaults() {
	setDefault(&c.Kind, CheckTCP)
	c.setKindDefaults()
	c.setTimingDefaults()
}

// setTimingDefaults fills in what is not given of the fields that checks of all kinds have, but Through.
func (c *Check) setTimingDefaults() {
	setDefault(&c.Interval, DefaultHealthInterval)
	setDefault(&c.Timeout, min(DefaultHealthTimeout, c.Interval))
	setDefault(&c.Jitter, DefaultHealthJitter)
	setDefault(&c.Rise, DefaultHealthRise)
	setDefault(&c.Fall, DefaultHealthFall)
	setDefault(&c.Initial, InitialDown)
}

// setKindDefaults fills in what is not given of the fields that only the kind has.
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

// Equal compares, what pointers point to included.
func (h *Health) Equal(o Health) bool {
	return slices.Equal(h.Checks, o.Checks) && h.Combine == o.Combine && h.AtLeast == o.AtLeast && h.From == o.From &&
		h.PanicBelow == o.PanicBelow && h.MinimumHealthy == o.MinimumHealthy && same(h.Damping, o.Damping) && same(h.Passive, o.Passive)
}

// same tells whether both are nil or point to equal values.
func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }
