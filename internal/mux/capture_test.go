package mux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/capture"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/wire"
)

// watcher is a fake that returns the same packet again and again.
type watcher struct {
	event  dataplane.WatchEvent
	closed chan struct{}
}

func (w *watcher) Next(time.Time) (dataplane.WatchEvent, error) { return w.event, nil }
func (w *watcher) Lost() (uint64, error)                        { return 7, nil }
func (w *watcher) Close() error                                 { close(w.closed); return nil }

// captureWorld returns an agent with a plan, which serves its socket.
func captureWorld(t *testing.T, watch func(dataplane.WatchFilter) (Watcher, error)) (w *world, run string) {
	t.Helper()
	w = newWorld(t)
	run, err := os.MkdirTemp("", "mux") // a unix socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	w.run, w.watch = run, watch
	w.restart()
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11"))
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- w.agent.Control(ctx, func() error { return nil }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		os.RemoveAll(run)
	})
	for { // until the socket exists
		conn, err := net.Dial("unix", filepath.Join(run, controlSocket))
		if err == nil {
			conn.Close()
			return w, run
		}
		runtime.Gosched()
	}
}

func forwardedEvent(w *world) dataplane.WatchEvent {
	key := w.tables.state.Endpoints[0].Key
	client := netip.MustParseAddr("198.51.100.11")
	in := wire.Packet{Src: client, Dst: key.VIP, Payload: wire.TCP{SrcPort: 40000, DstPort: key.Port}}
	out := wire.Packet{Src: client, Dst: netip.MustParseAddr("10.20.2.11"), Payload: wire.Raw{Number: 4, Data: in.IP()}}
	return dataplane.WatchEvent{
		Time: time.Unix(1, 0), Action: "tx", Reasons: reasons("forwarded", "fib_fallback"), Length: len(in.Frame()), Data: in.Frame(),
		SentLength: len(out.Frame()), Sent: out.Frame(),
	}
}

func TestCaptureNamesWhatTheMuxDid(t *testing.T) {
	var asked dataplane.WatchFilter
	fake := &watcher{closed: make(chan struct{})}
	w, run := captureWorld(t, func(f dataplane.WatchFilter) (Watcher, error) { asked = f; return fake, nil })
	fake.event = forwardedEvent(w)
	request := CaptureRequest{VIP: netip.MustParseAddr("203.0.113.10"), Port: "80-90", Protocol: "tcp", Snaplen: 100, Count: 2}
	var text strings.Builder
	totals, err := Capture(t.Context(), run, request, func(in io.Reader) (capture.Totals, error) { return capture.Print(&text, in) })
	if err != nil || totals != (capture.Totals{Packets: 2, Lost: 7}) {
		t.Fatalf("%+v, %v", totals, err)
	}
	<-fake.closed
	want := dataplane.WatchFilter{VIP: request.VIP, Protocol: lb.TCP, First: 80, Last: 90, Snaplen: 100, SentSnaplen: 128}
	if asked != want {
		t.Errorf("watch %+v, want %+v", asked, want)
	}
	key := w.tables.state.Endpoints[0].Key
	comment := "verdict=forwarded action=tx beside=fib_fallback service=web endpoint=" + endpointText(key) + " backend=10.20.2.11:8080 outer=10.20.2.11"
	if !strings.Contains(text.String(), comment) {
		t.Errorf("got\n%swant %s", &text, comment)
	}
	if n := w.agent.Captures(); n != 0 {
		t.Errorf("%d captures run after the end", n)
	}
}

// TestCaptureNamesFragments: the backend identifies the endpoint of a fragment without ports, if
// only one endpoint of its protocol has such a backend.
func TestCaptureNamesFragments(t *testing.T) {
	vip, host := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("10.20.1.11")
	endpoint := func(protocol lb.Protocol, port, end uint16, dipPort uint16) plan.Endpoint {
		return plan.Endpoint{
			Key: lb.EndpointKey{VIP: vip, Protocol: protocol, Port: port, PortEnd: end}, Service: "web",
			Members: []plan.Member{{ID: 3, DIP: host, Port: dipPort, Outer: host}},
		}
	}
	web, media := endpoint(lb.TCP, 80, 0, 8080), endpoint(lb.UDP, 8000, 8100, 0)
	all, dns := endpoint(lb.UDP, 0, lb.AllPorts, 0), endpoint(lb.UDP, 53, 0, 5353)
	in := wire.Packet{Src: netip.MustParseAddr("198.51.100.11"), Dst: vip, Payload: wire.UDP{SrcPort: 40000, DstPort: 8050}}
	later := in.Frame()
	binary.BigEndian.PutUint16(later[14+6:], 185)
	sent := wire.Packet{Src: in.Src, Dst: host, Payload: wire.Raw{Number: 4, Data: in.IP()}}.Frame()
	for name, test := range map[string]struct {
		endpoints []plan.Endpoint
		want      capture.Verdict
	}{
		"of its protocol": {[]plan.Endpoint{web, media}, capture.Verdict{Service: "web", Endpoint: "udp/203.0.113.10:8000-8100", Backend: "10.20.1.11"}},
		"a single port":   {[]plan.Endpoint{web, dns}, capture.Verdict{Service: "web", Endpoint: "udp/203.0.113.10:53", Backend: "10.20.1.11:5353"}},
		"two may be":      {[]plan.Endpoint{dns, all, web}, capture.Verdict{Service: "web", Backend: "10.20.1.11"}},
	} {
		test.want.Verdict, test.want.Action, test.want.Beside = "forwarded", "tx", []string{"fragment_followed"}
		test.want.Outer = "10.20.1.11"
		event := dataplane.WatchEvent{Action: "tx", Reasons: reasons("fragment_followed", "forwarded"), Data: later, Sent: sent}
		if got := packetOf(event, test.endpoints).Verdict; !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// TestCaptureEndsWithItsClient: the capture ends when its client disconnects.
func TestCaptureEndsWithItsClient(t *testing.T) {
	fake := &watcher{closed: make(chan struct{})}
	w, run := captureWorld(t, func(dataplane.WatchFilter) (Watcher, error) { return fake, nil })
	fake.event = forwardedEvent(w)
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	_, err := Capture(ctx, run, CaptureRequest{VIP: netip.MustParseAddr("203.0.113.10"), Snaplen: 100}, func(in io.Reader) (capture.Totals, error) {
		return capture.Copy(cancelAfter{&out, cancel}, in)
	})
	if err != nil {
		t.Fatalf("interrupted capture: %v", err)
	}
	<-fake.closed
	if totals, err := capture.Copy(io.Discard, &out); err != nil || totals.Packets == 0 {
		t.Errorf("what was written: %+v, %v", totals, err)
	}
}

// TestCaptureEndsWhenItsClientStops: the capture ends when its connected client reads nothing.
func TestCaptureEndsWhenItsClientStops(t *testing.T) {
	fake := &watcher{closed: make(chan struct{})}
	w, run := captureWorld(t, func(dataplane.WatchFilter) (Watcher, error) { return fake, nil })
	fake.event, w.agent.captureStall = forwardedEvent(w), time.Millisecond
	conn, err := net.Dial("unix", filepath.Join(run, controlSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request := CaptureRequest{VIP: netip.MustParseAddr("203.0.113.10"), Snaplen: 100}
	fmt.Fprintf(conn, "GET /v1/capture?%s HTTP/1.1\r\nHost: agent\r\n\r\n", request.query().Encode())
	<-fake.closed
}

// cancelAfter cancels once some packets were written.
type cancelAfter struct {
	*bytes.Buffer
	cancel context.CancelFunc
}

func (c cancelAfter) Write(p []byte) (int, error) {
	if c.Len() > 2000 {
		c.cancel()
	}
	return c.Buffer.Write(p)
}

func TestCaptureRefusals(t *testing.T) {
	_, run := captureWorld(t, func(dataplane.WatchFilter) (Watcher, error) { return nil, dataplane.ErrWatched })
	vip := netip.MustParseAddr("203.0.113.10")
	for want, r := range map[string]CaptureRequest{
		"another capture runs": {VIP: vip, Snaplen: 1},
		`port: "90-80"`:        {VIP: vip, Snaplen: 1, Port: "90-80"},
		`protocol: "sctp"`:     {VIP: vip, Snaplen: 1, Protocol: "sctp"},
		"unable to parse IP":   {Snaplen: 1},
	} {
		_, err := Capture(t.Context(), run, r, func(in io.Reader) (capture.Totals, error) { return capture.Copy(io.Discard, in) })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", r, err, want)
		}
	}
	_, err := Capture(t.Context(), t.TempDir(), CaptureRequest{VIP: vip}, nil)
	if !errors.Is(err, ErrNoAgent) {
		t.Errorf("without an agent: %v", err)
	}
}

// reasons returns the mux program's reasons with these names.
func reasons(names ...string) (out []dataplane.Reason) {
	for _, name := range names {
		out = append(out, dataplane.Reason{Name: name, Class: dataplane.MuxReasons().Class(name)})
	}
	return out
}
