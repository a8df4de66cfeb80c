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
	// compressFrom: below it compression costs more time than it saves, and changes are small.
	compressFrom = 1 << 20
	// pingAfter and pingTimeout find dead peers of streams.
	pingAfter   = 3 * time.Second
	pingTimeout = 5 * time.Second
	// shutdownGrace is for unary calls; streams end at once.
	shutdownGrace = 250 * time.Millisecond
)

// Handler serves the API: gRPC, gRPC-Web and JSON. The requests must come over the TLS of Serve.
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

// nodeHandler serves the NodeProtocol service, and takes from each role what one of it may have to say.
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

// Serve answers on the listener until ctx ends or the member does. It returns nil at the end of ctx, and else why the
// member cannot go on.
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

// crowdedPace is the least time between two logs of refused connections.
const crowdedPace = 10 * time.Second

// crowdedOut logs a connection that had no place, at most once in crowdedPace.
func (m *Manager) crowdedOut(from net.Addr) {
	now := m.o.Clock.Now().UnixNano()
	if last := m.crowdedAt.Load(); now-last >= int64(crowdedPace) && m.crowdedAt.CompareAndSwap(last, now) {
		m.o.Log.Warn("refused connections without certificates: too many are open", "latest_from", from.String(), "most", maxGuests, "most_of_a_source", maxGuestsOf)
	}
}

// logWriter passes the HTTP server's complaints on, one a line.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(p []byte) (int, error) {
	w.log.Debug("http", "message", string(p))
	return len(p), nil
}
