package dataplane

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/wire"
)

// Bounds of probes (bpf/abi.h).
const (
	// ProbeRequestMax is the most bytes of a request.
	ProbeRequestMax = int(muxProbeLimitLIMIT_PROBE_REQUEST)
	// ProbePortFirst is the first source port of probes; they go up to 65535.
	ProbePortFirst = uint16(muxProbeLimitLIMIT_PROBE_PORT_FIRST)
	// ProbeAttempts is how many consecutive ports a round may use.
	ProbeAttempts = int(muxProbeLimitLIMIT_PROBE_ATTEMPTS)
	// ProbeWindow is the TCP window of probes in bytes.
	ProbeWindow = uint16(muxProbeLimitLIMIT_PROBE_TCP_WINDOW)
	// probesStep is what numbers of rules are multiples of.
	probesStep = 64
)

// ProbeState is what a round of a probe came to.
type ProbeState uint8

// States up to ProbeConnected are passing ones. The first later one stays (enum probe_state).
const (
	ProbeSilent      = ProbeState(muxProbeStatePROBE_SILENT)
	ProbeUnreachable = ProbeState(muxProbeStatePROBE_UNREACHABLE) // an ICMP error says so
	ProbeConnected   = ProbeState(muxProbeStatePROBE_CONNECTED)   // the request was sent
	ProbeAnswered    = ProbeState(muxProbeStatePROBE_ANSWERED)    // connected, and nothing more was to be asked
	ProbeStatus      = ProbeState(muxProbeStatePROBE_STATUS)      // an HTTP status
	ProbeOdd         = ProbeState(muxProbeStatePROBE_ODD)         // data that begins with no whole, final status line
	ProbeClosed      = ProbeState(muxProbeStatePROBE_CLOSED)      // closed without data
	ProbeRefused     = ProbeState(muxProbeStatePROBE_REFUSED)
	ProbeBroken      = ProbeState(muxProbeStatePROBE_BROKEN) // connected, then reset
	ProbeStuck       = ProbeState(muxProbeStatePROBE_STUCK)  // connected, but this machine could not send the request
)

// Final says whether nothing more is to come.
func (s ProbeState) Final() bool { return s >= ProbeState(muxProbeStatePROBE_FINAL) }

// ProbeResult is what a round came to so far.
type ProbeResult struct {
	State   ProbeState
	Status  uint16 // of HTTP
	Attempt uint8  // whose answer it was, from 0
	Time    uint64 // when, CLOCK_MONOTONIC in nanoseconds
}

// ProbeRule is a probe that may be made.
type ProbeRule struct {
	// Peer answers: the server, through a tunnel the VIP. Local is where, and of the same family.
	Peer  netip.AddrPort
	Local netip.Addr
	// Hop leads to the peer, or to the tunnel's end.
	Hop NextHop
	// Request is sent over HTTP, nothing: the connection is the answer.
	Request []byte
	// Outer are the outer headers (Tunnel.Header) of segments without data; nil: no tunnel.
	Outer []byte
}

// ProbeTables are the packet prober's rules and results, which the XDP program reads and writes. Rules have numbers below Size;
// Put and Remove are not safe for concurrent use, of one number no two calls are. *Probes is the real one, and with the memory of
// NewFakeProbes the twin.
type ProbeTables interface {
	// Size is how many rules there may be.
	Size() uint32
	// Key is what numbers of rules are mixed with in initial sequence numbers: 20 bits.
	Key() ProbeKey
	// Put makes a rule, or changes it; it has no round then. An error: there is none of this number.
	Put(number uint32, r ProbeRule) error
	// Remove ends a rule; there need not be one.
	Remove(number uint32)
	// Begin begins a round: answers to this initial sequence number and these source ports count, all else does not. It costs two
	// stores.
	Begin(number, isn uint32, port uint16)
	// End ends the round: answers that still come are the kernel's, which resets their connections.
	End(number uint32)
	// Result reads what the round with this initial sequence number came to.
	Result(number, isn uint32) ProbeResult
}

// Probes implements ProbeTables.
type Probes struct {
	rules   []muxProbeRule
	results []muxProbeResult
	texts   *textStore
	key     ProbeKey
	// word is the word of a next hop.
	word   func(NextHop) (uint64, error)
	enable func() error
	memory muxMemory
	// What bursts need; nil without a program.
	resultsMap *ebpf.Map
	namespace  *os.File // of the network
}

var _ ProbeTables = (*Probes)(nil)

// probeNumberKey is a fresh key of numbers.
func probeNumberKey() ProbeKey {
	var b [8]byte
	rand.Read(b[:])
	return ProbeKey(binary.NativeEndian.Uint64(b[:]) &^ (1 << muxProbeRoundShiftPROBE_ON_SHIFT))
}

// ownMaps are the maps that are made anew with every program: probes, packet-too-big buckets, marks of shares, schedulers and connection records.
func (m *muxMaps) ownMaps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		muxMapProbeRules: m.ProbeRules, muxMapProbeResults: m.ProbeResults, muxMapProbeTexts: m.ProbeTexts,
		muxMapTooBigs: m.TooBigs, muxMapFragmentRates: m.FragmentRates, muxMapShareMarks: m.ShareMarks, muxMapScheduleCursors: m.ScheduleCursors, muxMapMemberLoads: m.MemberLoads,
		muxMapConnections: m.Connections, muxMapTrackBuckets: m.TrackBuckets, muxMapTrackStacks: m.TrackStacks,
		muxMapTrackHeads: m.TrackHeads, muxMapTrackDepot: m.TrackDepot, muxMapTrackBatches: m.TrackBatches,
	}
}

// probeTexts is how many lines of texts there are for so many rules: one each, of outer headers or of a request's begin with the server
// as its host, and some for what many rules share, a request's end and whole requests.
func probeTexts(rules uint32) uint32 {
	return min(rules+max(rules/8, probesStep), uint32(muxProbeLimitLIMIT_PROBE_TEXTS))
}

// tunnelledTexts is probeTexts of a mux, whose checks go through tunnels: a line of outer headers for each rule beside that of its request.
func tunnelledTexts(rules uint32) uint32 {
	return min(rules+probeTexts(rules), uint32(muxProbeLimitLIMIT_PROBE_TEXTS))
}

// openProbes maps the tables of probes.
func openProbes(m *Mux) (*Probes, error) {
	p := &Probes{key: probeNumberKey(), resultsMap: m.objects.ProbeResults}
	var err error
	if p.namespace, err = ownNamespace(); err != nil {
		return nil, err
	}
	var lines []muxProbeText
	for _, err := range []error{
		mapTable(&p.memory, m.objects.ProbeRules, &p.rules), mapTable(&p.memory, m.objects.ProbeResults, &p.results),
		mapTable(&p.memory, m.objects.ProbeTexts, &lines),
	} {
		if err != nil {
			p.close()
			return nil, err
		}
	}
	p.texts = newTextStore(lines)
	p.word = func(hop NextHop) (uint64, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.tables.hops.word(hop)
	}
	p.enable = func() error {
		if err := m.objects.ProbeKey.Set(uint64(p.key) | 1<<muxProbeRoundShiftPROBE_ON_SHIFT); err != nil {
			return fmt.Errorf("set %s: %w", muxVarProbeKey, err)
		}
		return nil
	}
	return p, nil
}

// Probes are the packet prober's tables. From then on the program takes answers to probes. They are empty when a process begins,
// and gone when the Mux is closed.
func (m *Mux) Probes() (*Probes, error) {
	if err := m.probes.enable(); err != nil {
		return nil, err
	}
	return m.probes, nil
}

func (p *Probes) close() {
	p.memory.close()
	p.namespace.Close()
}

// Size implements ProbeTables.
func (p *Probes) Size() uint32 { return uint32(len(p.rules)) }

// Key implements ProbeTables.
func (p *Probes) Key() ProbeKey { return p.key }

// Put implements ProbeTables.
func (p *Probes) Put(number uint32, r ProbeRule) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("probe %s: %w", r.Peer, err)
	}
	if number >= p.Size() {
		return fmt.Errorf("probe %s: number %d: at most %d probes by packets (--max-probes)", r.Peer, number, p.Size())
	}
	word, err := p.word(r.Hop)
	if err != nil {
		return fmt.Errorf("probe %s: %w", r.Peer, err)
	}
	p.Remove(number)
	texts, err := p.hold(r)
	if err != nil {
		return fmt.Errorf("probe %s: %w", r.Peer, err)
	}
	record := muxProbeRule{
		Peer: r.Peer.Addr().As16(), Local: r.Local.As16(), Nexthop: word, PortBe: be16(r.Peer.Port()), OuterLen: uint8(len(r.Outer)),
		RequestLen: uint16(len(r.Request)), RequestSum: be16(wire.Sum(r.Request)), Lines: texts.lines(),
	}
	if len(r.Request) > 0 {
		record.Kind = uint8(muxProbeKindPROBE_HTTP)
	}
	p.rules[number] = record
	return nil
}

// ruleTexts are the texts of a rule: the first line of its request, the others, and its outer headers.
type ruleTexts [3]text

// ruleLines are where a rule's record tells their lines.
var ruleLines = [3]uint{
	uint(muxProbeLinesShiftPROBE_LINES_REQUEST_SHIFT), uint(muxProbeLinesShiftPROBE_LINES_REST_SHIFT), uint(muxProbeLinesShiftPROBE_LINES_OUTER_SHIFT),
}

// hold keeps the texts of a rule.
func (p *Probes) hold(r ProbeRule) (t ruleTexts, err error) {
	first := min(len(r.Request), probeLine)
	for i, b := range [3][]byte{r.Request[:first], r.Request[first:], r.Outer} {
		if t[i], err = p.texts.hold(b); err != nil {
			p.release(t)
			return t, err
		}
	}
	return t, nil
}

func (p *Probes) release(t ruleTexts) {
	for _, x := range t {
		p.texts.release(x)
	}
}

// lines are those of a record.
func (t ruleTexts) lines() (word uint64) {
	for i, x := range t {
		word |= uint64(x.first) << ruleLines[i]
	}
	return word
}

// textsOf are those of a record.
func textsOf(r *muxProbeRule) (t ruleTexts) {
	first := min(r.RequestLen, uint16(probeLine))
	for i, length := range [3]uint16{first, r.RequestLen - first, uint16(r.OuterLen)} {
		t[i] = text{uint32(r.Lines>>ruleLines[i]) & 0xfffff, length}
	}
	return t
}

// overheads are the lengths of outer headers (enum overhead).
var overheads = []int{
	int(muxOverheadOVERHEAD_IP4), int(muxOverheadOVERHEAD_IP6), int(muxOverheadOVERHEAD_GUE4), int(muxOverheadOVERHEAD_GUE6),
}

func (r ProbeRule) check() error {
	switch {
	case !r.Peer.IsValid() || r.Peer.Port() == 0:
		return fmt.Errorf("address: must have a port")
	case r.Peer.Addr().Is4() != r.Local.Is4() || !r.Local.IsValid() || r.Peer.Addr().Is4In6():
		return fmt.Errorf("from %s: must be an address of the same family", r.Local)
	case len(r.Request) > ProbeRequestMax:
		return fmt.Errorf("request: %d bytes: must be at most %d", len(r.Request), ProbeRequestMax)
	case len(r.Outer) > 0 && !slices.Contains(overheads, len(r.Outer)):
		return fmt.Errorf("outer headers: %d bytes: must be those of a tunnel", len(r.Outer))
	}
	return nil
}

// Remove implements ProbeTables.
func (p *Probes) Remove(number uint32) {
	if number >= p.Size() {
		return
	}
	p.End(number)
	r := &p.rules[number]
	p.release(textsOf(r))
	r.RequestLen, r.OuterLen = 0, 0
}

// Begin implements ProbeTables.
func (p *Probes) Begin(number, isn uint32, port uint16) {
	store(&p.results[number].Word, 0)
	store(&p.rules[number].Round, uint64(isn)|uint64(port)<<muxProbeRoundShiftPROBE_ROUND_PORT_SHIFT)
}

// End implements ProbeTables.
func (p *Probes) End(number uint32) { store(&p.rules[number].Round, 0) }

// Result implements ProbeTables.
func (p *Probes) Result(number, isn uint32) ProbeResult {
	r := &p.results[number]
	word := load(&r.Word)
	if uint32(word) != isn || word == 0 {
		return ProbeResult{}
	}
	return ProbeResult{
		State: ProbeState(word >> muxProbeResultShiftPROBE_RESULT_STATE_SHIFT), Status: uint16(word >> muxProbeResultShiftPROBE_RESULT_STATUS_SHIFT),
		Attempt: uint8(word >> muxProbeResultShiftPROBE_RESULT_ATTEMPT_SHIFT), Time: atomic.LoadUint64(&r.Time),
	}
}
