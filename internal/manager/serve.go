package manager

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
)

// Limits of the API.
const (
	// compressFrom is the least size of a compressed message. Below it compression costs more time
	// than it saves, and changes are small.
	compressFrom = 1 << 20
	// pingAfter and pingTimeout detect dead peers of streams.
	pingAfter   = 3 * time.Second
	pingTimeout = 5 * time.Second
	// shutdownGrace applies to unary calls. Streams end immediately.
	shutdownGrace = 250 * time.Millisecond
)

// Handler returns the handler of the API: gRPC, gRPC-Web and JSON. Requests must arrive over the
// TLS of Serve.
func (m *Manager) Handler() http.Handler {
	d := m.newDoor()
	opts := []connect.HandlerOption{
		connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			return []connect.HandlerOption{connect.WithReadMaxBytes(maxBytes(spec.Procedure))}
		}),
		connect.WithCompressMinBytes(compressFrom),
		connect.WithInterceptors(append(slices.Clone(m.o.Interceptors), guard{d})...),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, r any) error {
			m.o.Log.Error("panic in a call", "procedure", spec.Procedure, "panic", r, "stack", string(debug.Stack()))
			return connect.NewError(connect.CodeInternal, errors.New("internal error"))
		}),
	}
	for _, codec := range jsonCodecs {
		opts = append(opts, connect.WithCodec(codec))
	}
	mux := http.NewServeMux()
	mux.Handle(shuntv1connect.NewManagerHandler(api{m}, opts...))
	path, nodes := m.nodeHandler(opts)
	mux.Handle(path, nodes)
	mux.Handle(shuntv1connect.NewMemberProtocolHandler(memberAPI{m}, opts...))
	g := gate{door: d, errors: connect.NewErrorWriter(opts...)}
	g.next = m.newForwarder(mux, g.refuse)
	return g
}

// nodeHandler returns the handler of the NodeProtocol service. It bounds the size of a report by
// the node's role.
func (m *Manager) nodeHandler(opts []connect.HandlerOption) (path string, h http.Handler) {
	byRole := map[string]http.Handler{}
	for _, role := range nodes {
		limit := connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			if spec.Procedure == shuntv1connect.NodeProtocolSyncProcedure {
				return []connect.HandlerOption{connect.WithReadMaxBytes(maxReport(role))}
			}
			return nil
		})
		_, byRole[role] = shuntv1connect.NewNodeProtocolHandler(nodeAPI{m}, append(slices.Clone(opts), limit)...)
	}
	path, others := shuntv1connect.NewNodeProtocolHandler(nodeAPI{m}, opts...)
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := byRole[identityOf(r.Context()).role]; h != nil {
			h.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

// Serve serves the API on the listener until ctx ends or the member stops. It returns nil when ctx
// ends, else the reason why the member cannot continue.
func (m *Manager) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           m.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, MaxConcurrentStreams: 1000},
		TLSConfig:         m.cert.server(),
		ErrorLog:          log.New(logWriter{m.o.Log}, "", 0),
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(newHandshakes(l, srv.TLSConfig, m.badCertificate, m.crowdedOut)) }()
	var cause error
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		m.stop(net.ErrClosed)
	case <-m.ctx.Done():
		cause = context.Cause(m.ctx)
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if srv.Shutdown(grace) != nil {
		srv.Close()
	}
	return cause
}

// crowdedPace is the minimum time between two log messages about refused connections.
const crowdedPace = 10 * time.Second

// crowdedOut logs a refused connection, at most once per crowdedPace.
func (m *Manager) crowdedOut(from net.Addr) {
	now := m.o.Clock.Now().UnixNano()
	if last := m.crowdedAt.Load(); now-last >= int64(crowdedPace) && m.crowdedAt.CompareAndSwap(last, now) {
		m.o.Log.Warn("refused connections without certificates: too many are open", "latest_from", from.String(), "most", maxGuests, "most_of_a_source", maxGuestsOf)
	}
}

// logWriter writes the HTTP server's errors to the log, one per line.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(p []byte) (int, error) {
	w.log.Debug("http", "message", string(p))
	return len(p), nil
}
