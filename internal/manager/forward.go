package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
)

const (
	// leaderWait is how long a call waits for a leader. An election after a crash takes little more
	// than leaseTTL.
	leaderWait = 5 * time.Second
	// leaderPause is how long a call waits before it retries a leader that cannot be reached or
	// does not lead yet.
	leaderPause = 50 * time.Millisecond
	// leaderGrace is how long the response of a replaced leader may take to arrive.
	leaderGrace = 250 * time.Millisecond
	// dialTimeout bounds the connection setup to another manager.
	dialTimeout = time.Second
)

// leaders has the procedures that only the leader can serve. The value reports whether executing
// one twice, with another call in between, may differ from executing it once.
var leaders = map[string]bool{
	shuntv1connect.ManagerApplyProcedure:             true,
	shuntv1connect.ManagerDeleteProcedure:            true,
	shuntv1connect.ManagerCreateTokenProcedure:       true,
	shuntv1connect.ManagerCreateAccessProcedure:      true,
	shuntv1connect.ManagerCreateCertificateProcedure: true,
	shuntv1connect.ManagerRevokeAccessProcedure:      true,
	shuntv1connect.ManagerRemoveMemberProcedure:      true,
	shuntv1connect.NodeProtocolJoinProcedure:         true,
	shuntv1connect.MemberProtocolAdmitProcedure:      true,
	shuntv1connect.ManagerReleaseSNATProcedure:       true,
	shuntv1connect.ManagerRotateKeysProcedure:        true,
	shuntv1connect.ManagerRotateRingProcedure:        true,
	shuntv1connect.ManagerRotateCAProcedure:          true,
	shuntv1connect.ManagerListKeysProcedure:          false,
	shuntv1connect.ManagerStatusProcedure:            false,
	shuntv1connect.ManagerTraceProcedure:             false,
	shuntv1connect.ManagerFlowsProcedure:             false,
	shuntv1connect.ManagerHealthOfProcedure:          false,
	shuntv1connect.ManagerAuditSNATProcedure:         false,
	shuntv1connect.ManagerEventsProcedure:            false,
	shuntv1connect.ManagerAuditProcedure:             false,
}

// fresh has the procedures that any member serves, after its view has caught up with all
// acknowledged writes. A Watch begins with at least the state that its caller saw at another
// member.
var fresh = map[string]bool{
	shuntv1connect.ManagerGetProcedure:        true,
	shuntv1connect.ManagerQUICConfigProcedure: true,
	shuntv1connect.ManagerWatchProcedure:      true,
	shuntv1connect.ManagerListAccessProcedure: true,
}

// forwarder forwards requests that only the leader can serve to the leader, unchanged, in any
// protocol.
type forwarder struct {
	m *Manager
	// next serves the requests that this member can serve.
	next   http.Handler
	refuse func(http.ResponseWriter, *http.Request, *connect.Error)
}

// newTransport returns the transport for connections to other managers.
func (m *Manager) newTransport() *http.Transport {
	return &http.Transport{
		DialContext:        (&net.Dialer{Timeout: dialTimeout, FallbackDelay: -1}).DialContext,
		TLSClientConfig:    m.cert.client(),
		ForceAttemptHTTP2:  true,
		DisableCompression: true, // bodies are passed on unchanged
		// The three bound how long a manager that has disappeared silently delays a caller.
		TLSHandshakeTimeout: dialTimeout,
		IdleConnTimeout:     time.Minute,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
}

func (m *Manager) newForwarder(next http.Handler, refuse func(http.ResponseWriter, *http.Request, *connect.Error)) *forwarder {
	return &forwarder{m, next, refuse}
}

// ServeHTTP implements http.Handler.
func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	procedure := r.URL.Path
	writes, needed := leaders[procedure]
	switch {
	case fresh[procedure]:
		if err := f.m.catchUp(r.Context()); err != nil {
			f.refuse(w, r, connect.NewError(connect.CodeUnavailable, err))
			return
		}
		f.next.ServeHTTP(w, r)
	case !needed:
		f.next.ServeHTTP(w, r)
	case identityOf(r.Context()).forwarded:
		f.serveForwarded(w, r)
	default:
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(maxBytes(procedure))))
		if err != nil {
			f.refuse(w, r, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("read the request: %w", err)))
			return
		}
		if _, err := f.m.lead(r.Context()); err == nil && f.try(w, r, body) {
			return
		}
		f.forward(w, r, body, writes)
	}
}

// try serves a request here. It returns false, without a response, if the term ended before the
// request had any effect.
func (f *forwarder) try(w http.ResponseWriter, r *http.Request, body []byte) bool {
	t := &trial{ResponseWriter: w, header: http.Header{}}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	f.next.ServeHTTP(t, r)
	t.begin()
	return !t.refused
}

// trial holds back the header of a response until it is known whether this member does not lead.
type trial struct {
	http.ResponseWriter
	header         http.Header
	begun, refused bool
}

// begin passes the header on.
func (t *trial) begin() {
	if t.begun {
		return
	}
	t.begun = true
	if t.refused = t.header.Get(headerNotLeading) != ""; t.refused {
		return
	}
	maps.Copy(t.ResponseWriter.Header(), t.header)
}

// Header implements http.ResponseWriter. Trailers are set after the response has begun.
func (t *trial) Header() http.Header {
	if t.begun && !t.refused {
		return t.ResponseWriter.Header()
	}
	return t.header
}

// WriteHeader implements http.ResponseWriter.
func (t *trial) WriteHeader(status int) {
	if t.begin(); !t.refused {
		t.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (t *trial) Write(p []byte) (int, error) {
	if t.begin(); t.refused {
		return len(p), nil
	}
	return t.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find deadlines.
func (t *trial) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Flush implements http.Flusher, which streams need.
func (t *trial) Flush() {
	if t.begin(); t.refused {
		return
	}
	if f, ok := t.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// serveForwarded serves a request that another member forwarded, and returns the revision that
// includes its effects.
func (f *forwarder) serveForwarded(w http.ResponseWriter, r *http.Request) {
	if _, err := f.m.lead(r.Context()); err != nil {
		w.Header().Set(headerNotLeading, "1")
		f.refuse(w, r, connect.NewError(connect.CodeUnavailable, err))
		return
	}
	s := &stamped{ResponseWriter: w, view: f.m.view}
	f.next.ServeHTTP(s, r)
	s.stamp() // a response without a body
}

// stamped sets headerRevision on a response. The header is written when the call is done, or when a
// stream begins.
type stamped struct {
	http.ResponseWriter
	view *view
	done bool
}

func (s *stamped) stamp() {
	if !s.done {
		s.done = true
		s.Header().Set(headerRevision, strconv.FormatInt(s.view.revision(), 10))
	}
}

// WriteHeader implements http.ResponseWriter.
func (s *stamped) WriteHeader(status int) {
	s.stamp()
	s.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (s *stamped) Write(p []byte) (int, error) {
	s.stamp()
	return s.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find flushing and deadlines.
func (s *stamped) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Flush implements http.Flusher, which streams need.
func (s *stamped) Flush() {
	s.stamp()
	if f, ok := s.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (v *view) revision() int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.rev
}

// errLocal is the error of a forward when this member has become the leader meanwhile.
var errLocal = errors.New("this manager leads")

// forward forwards the request to the leader. Its body was read, because it may have to be sent
// again, to another leader.
func (f *forwarder) forward(w http.ResponseWriter, r *http.Request, body []byte, writes bool) {
	who, err := identityOf(r.Context()).header()
	if err != nil {
		f.refuse(w, r, connect.NewError(connect.CodeInternal, err))
		return
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme = "https"
			p.Out.Header.Set(headerCaller, who)
			p.Out.Header.Del("Authorization")
		},
		Transport:     attempt{f, body, writes},
		FlushInterval: -1,
		ModifyResponse: func(res *http.Response) error {
			f.await(r.Context(), res.Header.Get(headerRevision))
			res.Header.Del(headerRevision)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if errors.Is(err, errLocal) {
				if !f.try(w, r, body) {
					f.refuse(w, r, connect.NewError(connect.CodeUnavailable, errNoLeader))
				}
				return
			}
			f.refuse(w, r, connect.NewError(connect.CodeUnavailable, err))
		},
		ErrorLog: log.New(logWriter{f.m.o.Log}, "", 0),
	}
	proxy.ServeHTTP(w, r)
}

// await waits until this member has the leader's write, so that the caller can read it here. It
// returns without an error if this member is far behind, because the write is done anyway.
func (f *forwarder) await(ctx context.Context, revision string) {
	rev, err := strconv.ParseInt(revision, 10, 64)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaderWait)
	defer cancel()
	if err := f.m.view.wait(ctx, rev); err != nil {
		f.m.o.Log.Warn("is behind the leader", "revision", rev, "error", err)
	}
}

// attempt sends one request to the current leader.
type attempt struct {
	*forwarder
	body   []byte
	writes bool
}

// RoundTrip implements http.RoundTripper. It retries only requests that had no effect or may be
// executed twice.
func (a attempt) RoundTrip(r *http.Request) (*http.Response, error) {
	m, ctx := a.m, r.Context()
	late := m.o.Clock.After(leaderWait)
	for {
		if _, err := m.lead(ctx); err == nil {
			return nil, errLocal
		}
		failed := errNoLeader
		if l := m.view.leadership(); l.name != "" && l.name != m.o.Name {
			res, sent, err := a.send(r, l)
			if err == nil && res.StatusCode != http.StatusOK {
				err = whole(res)
			}
			switch {
			case err == nil && res.Header.Get(headerNotLeading) == "":
				return res, nil
			case err == nil:
				res.Body.Close()
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case sent && a.writes:
				return nil, fmt.Errorf("manager %s, which led, did not answer: whether it was done is unknown: %w", l.name, err)
			default:
				// The request had no effect, or may be executed again: the caller may retry.
				failed = fmt.Errorf("%w: manager %s, which led, cannot be reached: %w", errNoLeader, l.name, err)
			}
		}
		select {
		case <-m.o.Clock.After(leaderPause):
		case <-late:
			return nil, failed
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// maxRefusal bounds the body of an error response.
const maxRefusal = 1 << 20

// whole reads an error response to its end, because from a truncated one the caller would get the
// status alone, and take it for another error.
func whole(res *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	res.Body.Close()
	if err != nil {
		return err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// errReplacedLeader ends the wait for a response of a leader that was replaced.
var errReplacedLeader = errors.New("it was replaced")

// send makes one attempt. sent reports whether the leader may have received the request. It does
// not wait longer than leaderGrace for a leader that was replaced according to the view, because
// that may be a suspended process.
func (a attempt) send(r *http.Request, l leaderKey) (res *http.Response, sent bool, err error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	var got atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { got.Store(true) }})
	out := r.Clone(ctx)
	out.URL = &url.URL{Scheme: "https", Host: l.address, Path: r.URL.Path, RawQuery: r.URL.RawQuery}
	out.Host = ""
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(a.body)), int64(len(a.body))
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(a.body)), nil }
	watch, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		if a.m.view.until(watch, func() bool { return a.m.view.leader.mod != l.mod }) != nil {
			return
		}
		select {
		case <-a.m.o.Clock.After(leaderGrace):
			cancel(errReplacedLeader)
		case <-watch.Done():
		}
	}()
	res, err = a.m.transport.RoundTrip(out)
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errReplacedLeader) {
			err = cause
		}
		cancel(nil)
		return nil, got.Load(), err
	}
	res.Body = closing{res.Body, func() { cancel(nil) }}
	return res, true, nil
}

// closing is a body that releases the resources of its request.
type closing struct {
	io.ReadCloser
	free func()
}

// Close implements io.Closer.
func (c closing) Close() error {
	defer c.free()
	return c.ReadCloser.Close()
}
