// Package quic is a module for Caddy that serves HTTP/3 with connection ids by which Shunt finds the server again. Caddy's own HTTP/3 listener gives quic-go
// no generator of them, so this app listens in its place, and hands requests to one of Caddy's HTTP servers.
package quic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/quic-go/quic-go/http3"
	"go.uber.org/zap"
)

func init() { caddy.RegisterModule(new(App)) }

// App is the app "shunt_quic" in Caddy's configuration.
type App struct {
	// Server is the name of the HTTP server whose routes and TLS policies are served. Its protocols must be without h3. It does not advertise HTTP/3 then: let a
	// handler set Alt-Svc.
	Server string `json:"server"`
	// Listen is the UDP address, ":443" by default.
	Listen string `json:"listen,omitempty"`
	// Config is the file that `shunt get quic SERVICE --backend DIP -o json` writes. It is followed while Caddy runs.
	Config string `json:"config"`
	// Secret is a file with 16 random bytes or more, which stay when Caddy starts again: clients then learn at once that their connections are
	// gone (RFC 9000 section 10.3). Optional.
	Secret string `json:"secret,omitempty"`
	// Retry has each client prove its address first (RFC 9000 section 8.1.2).
	Retry bool `json:"retry,omitempty"`
	// Grace is how long requests may take on after this configuration was replaced, 10s by default.
	Grace caddy.Duration `json:"grace,omitempty"`

	log      *zap.Logger
	ctx      caddy.Context
	web      *caddyhttp.Server
	server   *http3.Server
	listener *share
	// accepting ends when server takes no connections any more.
	accepting sync.WaitGroup
}

// CaddyModule implements caddy.Module.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "shunt_quic", New: func() caddy.Module { return new(App) }}
}

// Provision implements caddy.Provisioner.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.log = ctx, ctx.Logger()
	if a.Listen == "" {
		a.Listen = ":443"
	}
	if a.Grace == 0 {
		a.Grace = caddy.Duration(10 * time.Second)
	}
	app, err := ctx.App("http")
	if err != nil {
		return err
	}
	a.web = app.(*caddyhttp.App).Servers[a.Server]
	return nil
}

// Validate implements caddy.Validator.
func (a *App) Validate() error {
	switch {
	case a.Config == "":
		return errors.New("config: missing")
	case a.web == nil:
		return fmt.Errorf("server: %q: there is no such HTTP server", a.Server)
	case len(a.web.Protocols) == 0 || slices.Contains(a.web.Protocols, "h3"):
		return fmt.Errorf("server: %q: its protocols must be there, and without h3", a.Server)
	case len(a.web.TLSConnPolicies) == 0:
		return fmt.Errorf("server: %q: must have TLS connection policies", a.Server)
	}
	return nil
}

// Start implements caddy.App.
func (a *App) Start() error {
	t, err := acquire(a)
	if err != nil {
		return err
	}
	t.tls.Store(a.web.TLSConnPolicies.TLSConfig(a.ctx))
	a.listener = t.share()
	a.server = &http3.Server{Handler: a.web, MaxHeaderBytes: a.web.MaxHeaderBytes, IdleTimeout: time.Duration(a.web.IdleTimeout)}
	a.accepting.Go(func() { a.server.ServeListener(a.listener) })
	a.log.Info("serving HTTP/3", zap.String("listen", a.Listen), zap.Stringer("connection_ids", t.minting()))
	return nil
}

// Stop implements caddy.App. When another configuration has the same address its app listens on already, with the same socket.
func (a *App) Stop() error {
	if a.server == nil {
		return nil
	}
	// A server that shuts down leaves a connection that it is just taking without an answer.
	a.listener.Close()
	a.accepting.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.Grace))
	defer cancel()
	err := a.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = a.server.Close()
	}
	return errors.Join(err, a.listener.transport.release())
}

var (
	_ caddy.App         = (*App)(nil)
	_ caddy.Provisioner = (*App)(nil)
	_ caddy.Validator   = (*App)(nil)
)
