package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/capture"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// Watcher reads the events of the capture program; *dataplane.Watch implements it.
type Watcher interface {
	Next(deadline time.Time) (dataplane.WatchEvent, error)
	Lost() (uint64, error)
	Close() error
}

// CaptureRequest selects the packets to capture and limits the capture.
type CaptureRequest struct {
	VIP      netip.Addr
	Port     string // as in Endpoint.port; empty: every packet to the VIP
	Protocol string // "tcp", "udp", or empty
	// Snaplen is how many bytes of a frame are kept, 1 to dataplane.MaxSnaplen.
	Snaplen int
	// Sent: frames as they left are written, too.
	Sent bool
	// Count and Duration end the capture; 0: no limit.
	Count    uint64
	Duration time.Duration
}

// query returns the request as URL parameters of the control socket.
func (r CaptureRequest) query() url.Values {
	return url.Values{
		"vip": {r.VIP.String()}, "port": {r.Port}, "protocol": {r.Protocol}, "snaplen": {strconv.Itoa(r.Snaplen)},
		"sent": {strconv.FormatBool(r.Sent)}, "count": {strconv.FormatUint(r.Count, 10)}, "duration": {r.Duration.String()},
	}
}

func captureRequest(q url.Values) (CaptureRequest, error) {
	var r CaptureRequest
	var errs [5]error
	r.VIP, errs[0] = netip.ParseAddr(q.Get("vip"))
	r.Snaplen, errs[1] = strconv.Atoi(q.Get("snaplen"))
	r.Sent, errs[2] = strconv.ParseBool(q.Get("sent"))
	r.Count, errs[3] = strconv.ParseUint(q.Get("count"), 10, 64)
	r.Duration, errs[4] = time.ParseDuration(q.Get("duration"))
	r.Port, r.Protocol = q.Get("port"), q.Get("protocol")
	return r, errors.Join(errs[:]...)
}

// sentHeaders is how many bytes of a sent frame are read to find the backend: Ethernet, two VLAN
// tags, IPv6, UDP, GUE.
const sentHeaders = 128

// filter returns the request as a data plane filter.
func (r CaptureRequest) filter() (dataplane.WatchFilter, error) {
	f := dataplane.WatchFilter{VIP: r.VIP.Unmap(), Snaplen: r.Snaplen, SentSnaplen: min(sentHeaders, dataplane.MaxSnaplen)}
	if r.Sent {
		f.SentSnaplen = max(r.Snaplen, sentHeaders)
	}
	switch r.Protocol {
	case "":
	case "tcp":
		f.Protocol = lb.TCP
	case "udp":
		f.Protocol = lb.UDP
	default:
		return f, fmt.Errorf("protocol: %q: must be tcp, udp or empty", r.Protocol)
	}
	if r.Port == "" {
		return f, nil
	}
	first, end, allowed := lb.ParsePorts(r.Port)
	if allowed != "" {
		return f, fmt.Errorf("port: %q: %s", r.Port, allowed)
	}
	f.First, f.Last = first, max(first, end)
	return f, nil
}

// Captures returns the number of running captures.
func (a *Agent) Captures() int { return int(a.captures.Load()) }

// serveCapture answers GET /v1/capture with pcapng until the request's limits are met, the client
// disconnects, or the agent ends.
func (a *Agent) serveCapture(agent context.Context, w http.ResponseWriter, r *http.Request) {
	req, err := captureRequest(r.URL.Query())
	var filter dataplane.WatchFilter
	if err == nil {
		filter, err = req.filter()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if a.o.Watch == nil {
		http.Error(w, "this agent's data plane cannot capture", http.StatusNotImplemented)
		return
	}
	watch, err := a.o.Watch(filter)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	a.captures.Add(1)
	a.o.Log.Info("capture begins", "vip", req.VIP, "port", req.Port)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(agent, cancel)()
	w.Header().Set("Content-Type", "application/x-pcapng")
	err = a.capture(ctx, watch, req, patient{w, http.NewResponseController(w), a.captureStall})
	// Close before the response ends: a client that reads the end finds the mux's own program in
	// place.
	closed := watch.Close()
	a.captures.Add(-1)
	a.o.Log.Info("capture ends", "error", errors.Join(err, closed))
	if err != nil && ctx.Err() == nil {
		panic(http.ErrAbortHandler) // the client must not take the capture for complete
	}
}

// captureFlush is the longest time that a packet is buffered before it is sent to the client.
const captureFlush = 100 * time.Millisecond

// captureStall is how long a client may read nothing. A stopped client must not keep the capture
// program in place, because it is slower.
const captureStall = 10 * time.Second

// patient is a writer that waits for its client for up to stall in each write.
type patient struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	stall time.Duration
}

func (p patient) Write(b []byte) (int, error) {
	if err := p.c.SetWriteDeadline(time.Now().Add(p.stall)); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// FlushError is called by http.ResponseController.
func (p patient) FlushError() error {
	return errors.Join(p.c.SetWriteDeadline(time.Now().Add(p.stall)), p.c.Flush())
}

func (a *Agent) capture(ctx context.Context, watch Watcher, req CaptureRequest, out io.Writer) error {
	flush := func() error { return nil }
	if f, ok := out.(interface{ FlushError() error }); ok {
		flush = f.FlushError
	}
	pcap, err := capture.NewWriter(out, a.captureNode(), req.Snaplen, req.Sent)
	if err == nil {
		err = flush()
	}
	if err != nil {
		return err
	}
	names := a.endpointsOf(req.VIP.Unmap())
	var until time.Time
	if req.Duration > 0 {
		until = time.Now().Add(req.Duration)
	}
	var received uint64
	flushed := time.Now()
	for ctx.Err() == nil && (req.Count == 0 || received < req.Count) && (until.IsZero() || time.Now().Before(until)) {
		deadline := time.Now().Add(captureFlush)
		if !until.IsZero() && until.Before(deadline) {
			deadline = until
		}
		e, err := watch.Next(deadline)
		nothing := errors.Is(err, os.ErrDeadlineExceeded)
		if nothing || time.Since(flushed) >= captureFlush {
			if err := errors.Join(pcap.Flush(), flush()); err != nil {
				return err
			}
			names, flushed = a.endpointsOf(req.VIP.Unmap()), time.Now() // the plan may have changed
		}
		switch {
		case nothing:
			continue
		case err != nil:
			return err
		}
		if err := pcap.Write(packetOf(e, names)); err != nil {
			return err
		}
		received++
	}
	lost, err := watch.Lost()
	return errors.Join(err, pcap.Close(received+lost, lost), flush())
}

// captureNode returns the node's name, or "mux" before the first plan.
func (a *Agent) captureNode() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return cmp.Or(a.plan.Node.Name, "mux")
}

// endpointsOf returns the endpoints of a VIP: exact ports, then ranges, then all ports.
func (a *Agent) endpointsOf(vip netip.Addr) []plan.Endpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []plan.Endpoint
	for _, e := range a.plan.Endpoints {
		if e.Key.VIP == vip {
			out = append(out, e)
		}
	}
	width := func(e plan.Endpoint) int {
		switch {
		case e.Key.Protocol == lb.AnyProtocol:
			return 1 << 17
		case e.Key.PortEnd == 0:
			return 0
		}
		return 1 + int(e.Key.PortEnd) - int(e.Key.Port)
	}
	slices.SortStableFunc(out, func(x, y plan.Endpoint) int { return width(x) - width(y) })
	return out
}

// packetOf returns an event with the names of its endpoint and backend.
func packetOf(e dataplane.WatchEvent, endpoints []plan.Endpoint) capture.Packet {
	v := capture.Verdict{Action: e.Action}
	for _, r := range e.Reasons {
		if v.Verdict == "" && r.Class != dataplane.ClassInfo {
			v.Verdict = r.Name
		} else {
			v.Beside = append(v.Beside, r.Name)
		}
	}
	to := capture.Peek(e.Data)
	nameEndpoint(&v, to, endpoints)
	if v.Verdict == "forwarded" {
		nameBackend(&v, to.Protocol, capture.Peek(e.Sent), endpoints)
	}
	return capture.Packet{
		Time: e.Time, Length: e.Length, Data: e.Data, SentLength: e.SentLength, Sent: e.Sent, Verdict: v,
	}
}

// nameEndpoint sets the endpoint that receives a packet. A fragment without ports follows the first
// fragment, so that only its backend identifies the endpoint.
func nameEndpoint(v *capture.Verdict, to capture.Addressed, endpoints []plan.Endpoint) {
	hasPorts := uint8(lb.TCP) == to.Protocol || uint8(lb.UDP) == to.Protocol
	if hasPorts && to.SrcPort == 0 && to.Port == 0 {
		return
	}
	for _, e := range endpoints {
		last := max(e.Key.Port, e.Key.PortEnd)
		if e.Key.Protocol == lb.AnyProtocol || uint8(e.Key.Protocol) == to.Protocol && e.Key.Port <= to.Port && to.Port <= last {
			v.Service, v.Endpoint = e.Service, endpointText(e.Key)
			return
		}
	}
}

// nameBackend sets the member that a frame was sent to. It looks in the named endpoint, then in
// those of the packet's protocol, then in all, because ICMP errors belong to every endpoint of the
// VIP. If several endpoints have such a member, it sets neither an endpoint nor the backend's port.
func nameBackend(v *capture.Verdict, protocol uint8, sent capture.Addressed, endpoints []plan.Endpoint) {
	v.Outer = sent.Dst.String()
	for _, like := range []func(plan.Endpoint) bool{
		func(e plan.Endpoint) bool { return endpointText(e.Key) == v.Endpoint },
		func(e plan.Endpoint) bool {
			return uint8(e.Key.Protocol) == protocol || e.Key.Protocol == lb.AnyProtocol
		},
		func(plan.Endpoint) bool { return true },
	} {
		found := 0
		for _, e := range endpoints {
			m, ok := sentMember(e, sent)
			if !ok || !like(e) {
				continue
			}
			if found++; found > 1 {
				v.Endpoint, v.Backend = "", m.DIP.String()
				break
			}
			v.Service, v.Endpoint, v.Backend = e.Service, endpointText(e.Key), m.DIP.String()
			if m.Port != 0 {
				v.Backend = netip.AddrPortFrom(m.DIP, m.Port).String()
			}
		}
		if found > 0 {
			return
		}
	}
}

// sentMember returns the member of an endpoint that a frame was sent to.
func sentMember(e plan.Endpoint, sent capture.Addressed) (plan.Member, bool) {
	i := slices.IndexFunc(e.Members, func(m plan.Member) bool {
		return m.Outer == sent.Dst && (sent.Member < 0 || int(m.ID) == sent.Member)
	})
	if i < 0 {
		return plan.Member{}, false
	}
	return e.Members[i], true
}

// endpointText formats an endpoint as tools print it.
func endpointText(k lb.EndpointKey) string {
	vip := k.VIP.String()
	if k.VIP.Is6() {
		vip = "[" + vip + "]"
	}
	return k.Protocol.String() + "/" + vip + ":" + lb.PortsText(k.Port, k.PortEnd)
}

// Capture requests a capture from the agent of a run directory and passes the stream to use. It
// returns when the capture or ctx ends; the end of ctx is not an error.
func Capture(ctx context.Context, runDir string, r CaptureRequest, use func(io.Reader) (capture.Totals, error)) (capture.Totals, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/v1/capture?"+r.query().Encode(), nil)
	if err != nil {
		return capture.Totals{}, err
	}
	resp, err := controlClient(runDir).Do(req)
	if errors.Is(err, ErrNoAgent) {
		return capture.Totals{}, fmt.Errorf("%w with run directory %s", ErrNoAgent, runDir)
	}
	if err != nil {
		return capture.Totals{}, fmt.Errorf("capture: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return capture.Totals{}, fmt.Errorf("capture: %s", strings.TrimSpace(string(text)))
	}
	totals, err := use(resp.Body)
	if ctx.Err() != nil {
		err = nil
	}
	return totals, err
}
