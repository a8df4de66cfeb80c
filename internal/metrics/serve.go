package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// scrapesAtOnce limits concurrent scrapes and so their cost; further ones are refused.
const scrapesAtOnce = 4

// Registry is a set of metrics to serve.
type Registry = prometheus.Registry

// register returns a registry of Shunt's metrics and of the usual ones of a Go process (go_*,
// process_*).
func register(all ...prometheus.Collector) (*Registry, error) {
	r := prometheus.NewRegistry()
	all = append(all, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return r, nil
}

// Listen listens on the address for Serve; an empty one gives no listener and no error.
func Listen(address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("--metrics: %s: another process listens there", address)
	}
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	return l, nil
}

// Serve serves GET /metrics until ctx ends, and with profiles also /debug/pprof/ (net/http/pprof).
// Without a listener it returns immediately.
func Serve(ctx context.Context, l net.Listener, r *Registry, profiles bool) error {
	if l == nil {
		return nil
	}
	routes := http.NewServeMux()
	routes.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesAtOnce}))
	if profiles {
		// Index also serves the named profiles, such as heap and goroutine.
		routes.HandleFunc("GET /debug/pprof/", pprof.Index)
		routes.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		routes.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		routes.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	server := &http.Server{
		Handler: routes, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10,
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// startsFile holds the count in a node's run directory, which lasts until the machine's next boot.
const startsFile = "starts"

// CountStart increments and returns the number of starts of a node's agent. The agent's lock must
// be held.
func CountStart(runDir string) (uint64, error) {
	path := filepath.Join(runDir, startsFile)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("count start: %w", err)
	}
	// A file that is not a number restarts the count, which a counter may do.
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	n++
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(strconv.FormatUint(n, 10)+"\n"), 0o600); err != nil {
		return n, fmt.Errorf("count start: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return n, fmt.Errorf("count start: %w", err)
	}
	return n, nil
}
