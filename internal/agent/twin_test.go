package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
)

// managerTwin is a manager that sends updates of a test to a node that joined it.
type managerTwin struct {
	shuntv1connect.UnimplementedNodeProtocolHandler
	t       *testing.T
	ca      *pki.CA
	address string
	streams chan *twinStream
}

// twinStream is one stream of the node.
type twinStream struct {
	t       *testing.T
	reports chan *apiv1.NodeReport // closed at the stream's end
	ups     chan *apiv1.PlanUpdate // closing it ends the stream
}

func newManagerTwin(t *testing.T) *managerTwin {
	t.Helper()
	m := &managerTwin{t: t, streams: make(chan *twinStream, 1)}
	var err error
	if m.ca, err = pki.NewCA("test", time.Now()); err != nil {
		t.Fatal(err)
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := m.ca.Manager("m1", key, nil, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.address = l.Addr().String()
	mux := http.NewServeMux()
	mux.Handle(shuntv1connect.NewNodeProtocolHandler(m))
	server := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{*pair}}}
	var serving sync.WaitGroup
	serving.Go(func() { server.ServeTLS(l, "", "") })
	t.Cleanup(func() {
		server.Close()
		serving.Wait()
	})
	return m
}

// Sync implements the node protocol.
func (m *managerTwin) Sync(ctx context.Context, stream *connect.BidiStream[apiv1.NodeReport, apiv1.PlanUpdate]) error {
	s := &twinStream{t: m.t, reports: make(chan *apiv1.NodeReport), ups: make(chan *apiv1.PlanUpdate)}
	ctx, end := context.WithCancel(ctx)
	go func() {
		defer close(s.reports)
		for {
			r, err := stream.Receive()
			if err != nil {
				return
			}
			select {
			case s.reports <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer end()
	select {
	case m.streams <- s:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		select {
		case up, ok := <-s.ups:
			if !ok {
				return connect.NewError(connect.CodeAborted, nil)
			}
			if err := stream.Send(up); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// accept returns the node's next stream, after its hello.
func (m *managerTwin) accept() *twinStream {
	m.t.Helper()
	select {
	case s := <-m.streams:
		if r := s.report(); r.GetHello() == nil {
			m.t.Fatalf("first report is %v: must be a hello", r)
		}
		return s
	case <-m.t.Context().Done():
		m.t.Fatal("the node opens no stream")
		return nil
	}
}

// report returns the next report.
func (s *twinStream) report() *apiv1.NodeReport {
	s.t.Helper()
	r, ok := <-s.reports
	if !ok {
		s.t.Fatal("the stream ended")
	}
	return r
}

// until advances the clock until the node sends a report.
func (s *twinStream) until(fake *clock.Fake, step time.Duration) *apiv1.NodeReport {
	s.t.Helper()
	for {
		select {
		case r, ok := <-s.reports:
			if !ok {
				s.t.Fatal("the stream ended")
			}
			return r
		// lets the fake clock continue; the duration does not matter
		case <-time.After(time.Millisecond):
			fake.Advance(step)
		}
	}
}

// run starts a node of the twin's cluster, until the test ends.
func (m *managerTwin) run(o Options, h Handler) {
	m.t.Helper()
	cert, key, err := m.ca.Client("node1", "mux", time.Hour, time.Now())
	if err != nil {
		m.t.Fatal(err)
	}
	o.Name, o.Role, o.Manager, o.StateDir, o.Version = "node1", "mux", m.address, m.t.TempDir(), "test"
	if err := writeFile(filepath.Join(o.StateDir, credentialsFile), bytes.Join([][]byte{key, cert, m.ca.CertPEM()}, nil)); err != nil {
		m.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := Run(ctx, o, h); err != nil {
			m.t.Errorf("agent: %v", err)
		}
	})
	m.t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// obedient is a handler that accepts everything.
type obedient struct{}

func (obedient) Apply(context.Context, plan.Plan) error { return nil }
func (obedient) Status() *apiv1.NodeStatus              { return &apiv1.NodeStatus{Drained: true} }
func (obedient) Trace(*apiv1.TraceRequest) *apiv1.TraceResult {
	return &apiv1.TraceResult{Verdict: "forwarded"}
}
func (obedient) Flows(context.Context, *apiv1.FlowsRequest) *apiv1.FlowsResult {
	return &apiv1.FlowsResult{}
}

func (obedient) Health(q *apiv1.HealthQuestion) *apiv1.HealthResult {
	out := &apiv1.HealthResult{}
	for _, m := range q.GetMembers() {
		out.Members = append(out.Members, &apiv1.NodeHealth{Words: m.GetVip()})
	}
	return out
}
