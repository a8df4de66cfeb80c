package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/metrics"
)

type managerFlags struct {
	data, listen, advertise, name string
	metrics                       metricsFlags
	downAfter, auditKeep          time.Duration
	nodeTimeout, replaceAfter     time.Duration
	keys                          keyFlags
	oidc                          oidcFlags
	verbose                       bool
	// single means that the manager is part of `shunt run`, which prints no next steps.
	single bool
	store  storeFlags
}

// newManager returns the command `shunt manager`.
func newManager() *cobra.Command {
	var f managerFlags
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Run the manager: API, objects, plans",
		Long: `Run the manager: it keeps the objects, answers the API over TLS and streams every node its plan.

The first start makes a certificate authority and DATA/admin.yaml, the client configuration of the administrator.
Everything is kept in the data directory; shunt backup saves it. docs/ops/members.md tells how to run three or five managers.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runManager(cmd.Context(), f, cmd.ErrOrStderr())
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// register adds all flags, which gives every field its default.
func (f *managerFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.data, "data", "/var/lib/shunt/manager", "data directory")
	fl.StringVar(&f.listen, "listen", ":8443", "`address:port` of the API")
	fl.StringVar(&f.advertise, "advertise", "", "`address:port` that nodes and clients use, when it differs from --listen")
	fl.StringVar(&f.name, "name", "", "name of this manager (default: the host's name)")
	f.metrics.add(fl)
	fl.DurationVar(&f.downAfter, "down-after", manager.DefaultDownAfter, "how long every mux must call a backend dead until rings are made without it; 0: never")
	fl.DurationVar(&f.auditKeep, "audit-keep", manager.DefaultAuditKeep, "how long the audit log is kept, as long as it has no more than 256 MiB")
	f.oidc.register(fl)
	fl.DurationVar(&f.nodeTimeout, "node-timeout", manager.DefaultNodeTimeout, "how long a node may leave what it is sent unread until its stream is ended; 0: for ever")
	fl.DurationVar(&f.replaceAfter, "replace-after", manager.DefaultReplaceAfter, "how long a mux must be away until others get its VIPs; 0: never")
	f.keys.register(fl)
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "log more")
	f.store.register(fl)
}

func (f *managerFlags) check() error {
	if err := checkListen("--listen", f.listen); err != nil {
		return err
	}
	if f.advertise != "" {
		if err := checkDial("--advertise", f.advertise); err != nil {
			return err
		}
	}
	if err := f.metrics.check(); err != nil {
		return err
	}
	if f.downAfter < 0 {
		return usagef("--down-after: %s: must be 0 or longer", f.downAfter)
	}
	if f.auditKeep <= 0 {
		return usagef("--audit-keep: %s: must be more than 0", f.auditKeep)
	}
	if f.nodeTimeout < 0 {
		return usagef("--node-timeout: %s: must be 0 or longer", f.nodeTimeout)
	}
	if f.replaceAfter < 0 {
		return usagef("--replace-after: %s: must be 0 or longer", f.replaceAfter)
	}
	if err := f.keys.check(); err != nil {
		return err
	}
	if err := checkDirectories([2]string{"--data", f.data}); err != nil {
		return err
	}
	if err := f.oidc.check(); err != nil {
		return err
	}
	if f.name == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--name: not given, and the host's name is unknown: %w", err)
		}
		f.name = name
	}
	return f.store.check(f.name)
}

func runManager(ctx context.Context, f managerFlags, stderr io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	for {
		err := serveManager(ctx, f, log, stderr)
		if !errors.Is(err, manager.ErrStartAnew) || ctx.Err() != nil {
			return err
		}
		f.store.forceNew = false // once
	}
}

// serveManager runs a manager until it ends.
func serveManager(ctx context.Context, f managerFlags, log *slog.Logger, stderr io.Writer) error {
	// Listen first, because a port in use is the most common error and costs nothing to find.
	listener, err := net.Listen("tcp", f.listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("--listen: %s: another process listens there", f.listen)
	}
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer listener.Close()
	scrapes, err := metrics.Listen(f.metrics.address)
	if err != nil {
		return err
	}
	if scrapes != nil {
		defer scrapes.Close()
	}
	dir, err := manager.OpenDataDir(f.data)
	if err != nil {
		return err
	}
	defer dir.Close()
	meter := metrics.NewManager(f.name, thisBuild())
	verifier, err := f.oidc.verifier(log)
	if err != nil {
		return err
	}
	o := manager.Options{
		OIDC: verifier, Dir: dir, Interceptors: []connect.Interceptor{meter.Interceptor()}, Name: f.name,
		Listen: listener.Addr().String(), Advertise: cmp.Or(f.advertise, f.store.advertise(listener.Addr().String())), Peer: f.store.peer,
		Version: version, Commit: commit(), Log: log, DownAfter: cmp.Or(f.downAfter, -1), ReplaceAfter: cmp.Or(f.replaceAfter, -1), AuditKeep: f.auditKeep,
		NodeTimeout: cmp.Or(f.nodeTimeout, -1), Schema: storeSchema,
		KeyLifetime: cmp.Or(f.keys.lifetime, -1), CIDKeyLifetime: f.keys.cidLifetime, KeyRest: f.keys.rest,
		SNATLeased: func(l manager.SNATLease) { meter.SNATLeased(l.Queued, l.Storing, l.Telling) },
	}
	kv, err := f.store.open(ctx, o, log)
	if err != nil {
		return err
	}
	defer kv.Close()
	o.Store, o.Cluster = meter.Store(kv.Store), kv.cluster
	m, err := manager.Open(ctx, o)
	if err != nil {
		return err
	}
	defer m.Close()
	log.Info("manager is up", "listen", listener.Addr(), "data", f.data, "epoch", m.Epoch())
	if m.FirstStart && !f.single && f.store.join == "" {
		greet(stderr, dir)
	}
	registry, err := meter.Registry(m.Status)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = together(cancel,
		func() error { return m.Serve(ctx, listener) },
		func() error { return f.metrics.serve(ctx, scrapes, registry) },
		func() error {
			if verifier != nil {
				verifier.Run(ctx)
			}
			<-ctx.Done()
			return nil
		},
	)
	log.Info("manager stops") // the command returns the error
	return err
}

// greet prints the operator's next steps after the first start.
func greet(w io.Writer, dir *manager.DataDir) {
	fmt.Fprintf(w, `
This is the first start. The administrator's client configuration, good for everything, is
    %[1]s
Next:
    shunt --config %[1]s apply -f FILE              # a Network, the Nodes, a Service
    shunt --config %[1]s token create --node NAME --role mux -f NAME.token
and on the machine NAME:
    shunt mux --interface eth0 --manager ADDRESS:PORT --token-file NAME.token

`, dir.AdminConfig())
}
