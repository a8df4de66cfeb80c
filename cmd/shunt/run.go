package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/service"
	"github.com/shuntlb/shunt/internal/single"
)

// fileSource owns the fields that `shunt run` reads from its file.
const fileSource = "file"

// Timeouts of a single box.
const (
	// answerTimeout is for the manager's first response, because etcd replays its log first.
	answerTimeout = 90 * time.Second
	// obeyTimeout is for the mux to apply the new revision.
	obeyTimeout = 30 * time.Second
	// lookAgain is the poll interval.
	lookAgain = 100 * time.Millisecond
)

type runFlags struct {
	file    string
	manager managerFlags
	mux     muxFlags
}

// newRun returns the command `shunt run`.
func newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run -f FILE|DIR",
		Short: "Run a balancer of one machine: manager, mux and health checks in one process, from one file",
		Long: `Run a balancer of one machine from one file, with manager, mux and health checks in one process.

The file holds a Network and Services, and, for BGP, the Node of this machine; without one the machine is a mux with the
addresses of its interface. The file is everything: what is taken out of it goes. It is watched, and read on SIGHUP; each change
is checked and applied as a whole, or refused with file, line, column and what is allowed, and then the last good state stays.
A drain by the command line is no part of the file and outlives its changes.

All other commands work as with a manager of its own. Data and state are where 'shunt manager' and 'shunt mux' have theirs, so that
one can become the other.`,
		Example: `  shunt run -f /etc/shunt/shunt.yaml --interface eth0
  shunt run -f /etc/shunt/conf.d --interface eth0 --listen 10.0.0.5:8443 --metrics :9090`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runSingle(cmd.Context(), f, cmd.ErrOrStderr()) },
	}
	// Options without a flag here have the defaults of `shunt manager`.
	f.manager.register(pflag.NewFlagSet("manager", pflag.ContinueOnError))
	fl := cmd.Flags()
	fl.StringVarP(&f.file, "file", "f", "", "YAML file, or directory of .yaml files, with everything that is wanted")
	f.mux.register(cmd)
	fl.StringVar(&f.manager.data, "data", "/var/lib/shunt/manager", "data directory of the manager")
	fl.StringVar(&f.manager.listen, "listen", "127.0.0.1:8443", "`address:port` of the API")
	fl.DurationVar(&f.manager.downAfter, "down-after", manager.DefaultDownAfter, "how long a backend must be dead until rings are made without it; 0: never")
	fl.BoolVarP(&f.mux.verbose, "verbose", "v", false, verboseUsage)
	return cmd
}

// check sets the fields that follow from other flags.
func (f *runFlags) check() error {
	if f.file == "" {
		return usagef(`--file: "": must be a YAML file or a directory of .yaml files`)
	}
	host, port, ok := splitAddress(f.manager.listen)
	if !ok || port == 0 {
		return usagef("--listen: %q: must be ADDRESS:PORT or :PORT, the port 1 to 65535", f.manager.listen)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	f.mux.manager = hostPort(host, uint32(port))
	f.manager.verbose, f.manager.single = f.mux.verbose, true
	if err := f.mux.check(); err != nil {
		return err
	}
	f.manager.name = f.mux.name
	f.mux.tokenFile = filepath.Join(f.mux.state, "join.token")
	return f.manager.check()
}

// box is a running balancer of one machine.
type box struct {
	f      runFlags
	log    *slog.Logger
	client *client
	// addresses of the mux's device, for a Node that the file does not have.
	addresses []netip.Addr

	mu sync.Mutex
	// agent is the mux's agent after it was created.
	agent *mux.Agent
	ready bool
}

func runSingle(ctx context.Context, f runFlags, stderr io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	level := slog.LevelInfo
	if f.mux.verbose {
		level = slog.LevelDebug
	}
	b := &box{f: f, log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))}
	device, _, err := muxDevices(f.mux.ifaces)
	if err != nil {
		return err
	}
	b.addresses = device.Addresses
	// Report a wrong file before anything is started or made.
	if _, _, err := b.read(ctx); err != nil && !used(f.manager.data) {
		return err
	}
	b.f.mux.created = func(a *mux.Agent) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.agent = a
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = together(cancel,
		func() error { return runManager(ctx, b.f.manager, stderr) },
		func() error { return b.mux(ctx, stderr) },
		func() error { return b.follow(ctx, reload) },
		func() error {
			return service.Watchdog(ctx, b.alive, func(err error) { b.log.Error("is not well", "error", err) })
		},
	)
	return errors.Join(err, service.Stopping())
}

// used reports whether a manager has run in the data directory.
func used(data string) bool {
	_, err := os.Stat(filepath.Join(data, "admin.yaml"))
	return err == nil
}

// answers waits until the manager responds and a leader is elected.
func (b *box) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	g := &globals{config: filepath.Join(b.f.manager.data, "admin.yaml"), server: "https://" + b.f.mux.manager}
	for {
		c, err := g.connect()
		if err == nil {
			if _, err = c.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{})); err == nil {
				b.mu.Lock()
				b.client = c
				b.mu.Unlock()
				return nil
			}
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil
			}
			return fmt.Errorf("the manager in this process does not answer: %w", err)
		}
	}
}

// mux runs the mux. A mux that joined before starts immediately, from its last plan.
func (b *box) mux(ctx context.Context, stderr io.Writer) error {
	if _, err := os.Stat(filepath.Join(b.f.mux.state, "node.pem")); err != nil {
		if err := b.answers(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		if err := b.invite(ctx); err != nil {
			return err
		}
	}
	return runMux(ctx, b.f.mux, stderr)
}

// invite makes the join token of this machine's mux.
func (b *box) invite(ctx context.Context) error {
	res, err := b.client.CreateToken(ctx, connect.NewRequest(&apiv1.CreateTokenRequest{
		Node: b.f.mux.name, Role: string(lb.RoleMux), Ttl: durationpb.New(10 * time.Minute),
	}))
	if err != nil {
		return b.client.explain(err)
	}
	if err := os.MkdirAll(b.f.mux.state, 0o700); err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	if err := os.WriteFile(b.f.mux.tokenFile, []byte(res.Msg.GetToken()+"\n"), 0o600); err != nil {
		return fmt.Errorf("--state: write join token: %w", err)
	}
	return nil
}

// follow applies the file to the manager whenever it changes.
func (b *box) follow(ctx context.Context, reload <-chan os.Signal) error {
	if err := b.answers(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	go func() {
		for {
			select {
			case s := <-reload:
				b.tell(service.Reloading())
				signals <- s
			case <-ctx.Done():
				return
			}
		}
	}()
	err := single.Follow(ctx, single.Options{
		Path: b.f.file, Apply: b.apply, Reload: signals, Log: b.log,
		Told: func(summary string, err error) {
			if err == nil {
				b.ready = true
				b.log.Info("the file is in force", "file", b.f.file, "holds", summary)
				b.tell(service.Ready(summary))
				return
			}
			for line := range strings.Lines(err.Error()) {
				b.log.Error("the file is not in force, the last good state stays: " + strings.TrimSuffix(line, "\n"))
			}
			if errors.As(err, new(single.Transient)) {
				return
			}
			if empty, known := b.empty(ctx); known && empty && !b.ready {
				cancel(err)
				return
			}
			b.ready = true
			b.tell(service.Ready("last good state: " + err.Error()))
		},
	})
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// tell logs an error of notifying the service manager.
func (b *box) tell(err error) {
	if err != nil {
		b.log.Warn("cannot tell the service manager", "error", err)
	}
}

// empty reports whether the manager has no service. Then there is no last good state.
func (b *box) empty(ctx context.Context) (empty, known bool) {
	res, err := b.client.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: string(lb.KindService)}))
	return err == nil && len(res.Msg.GetObjects()) == 0, err == nil
}

// read reads the file and adds the Node of this machine.
func (b *box) read(ctx context.Context) ([]*apiv1.Object, *documents, error) {
	docs, err := readDocuments(ctx, nil, []string{b.f.file}, lb.Whole)
	if err != nil {
		return nil, nil, err
	}
	var (
		out []*apiv1.Object
		own bool
	)
	for _, d := range docs.all {
		if n, ok := d.Object.(*lb.Node); ok && n.Name == b.f.mux.name {
			if n.Role != lb.RoleMux {
				return nil, nil, fmt.Errorf("%s: role: %q: must be mux, this machine runs one", lb.Ref(lb.KindNode, n.Name), n.Role)
			}
			own = true
		}
		out = append(out, convert.Written(d))
	}
	if !own {
		node, err := ownNode(b.f.mux.name, b.f.mux.ifaces[0], b.addresses, docs.all)
		if err != nil {
			return nil, nil, err
		}
		out = append(out, convert.ToObject(node))
	}
	return out, docs, nil
}

// apply makes the manager's objects those of the file and waits until the mux has applied them.
// Objects that the file no longer holds are deleted if a allows it.
func (b *box) apply(ctx context.Context, a single.Attempt) (string, error) {
	objects, docs, err := b.read(ctx)
	if err != nil {
		return "", err
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request := &apiv1.ApplyRequest{Objects: objects, Source: fileSource, Prune: true}
	err = b.checkDeletions(call, a, request, docs)
	if errors.As(err, new(single.Deletes)) || errors.As(err, new(single.Transient)) || errors.As(err, new(emptyFile)) {
		return "", err
	}
	var res *connect.Response[apiv1.ApplyResponse]
	if err == nil {
		res, err = b.client.Apply(call, connect.NewRequest(request))
	}
	if err != nil {
		switch said := docs.locate(b.client.explain(err)); connect.CodeOf(err) {
		case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodePermissionDenied:
			return "", said
		default:
			return "", single.Transient{Err: said}
		}
	}
	for _, text := range res.Msg.GetWarnings() {
		b.log.Warn(text)
	}
	for _, ch := range res.Msg.GetChanges() {
		if ch.GetAction() != apiv1.Change_ACTION_UNCHANGED {
			b.log.Info(lb.Ref(lb.Kind(ch.GetKind()), ch.GetName()) + " " + actions[ch.GetAction()])
		}
	}
	services := 0
	for _, o := range objects {
		if o.GetService() != nil {
			services++
		}
	}
	return fmt.Sprintf("%d services, revision %d", services, res.Msg.GetRevision()), b.obeyed(ctx, res.Msg.GetRevision())
}

// emptyFile is the error of a file without objects whose previous objects would be deleted.
type emptyFile struct{ name string }

// Error implements error.
func (e emptyFile) Error() string {
	return e.name + ": no objects: must hold at least one, or the file must be removed"
}

// checkDeletions determines by a dry run which objects and parts of objects a request deletes, and
// returns why it must not.
func (b *box) checkDeletions(ctx context.Context, a single.Attempt, request *apiv1.ApplyRequest, docs *documents) error {
	dry := proto.CloneOf(request)
	dry.DryRun = true
	res, err := b.client.Apply(ctx, connect.NewRequest(dry))
	if err != nil {
		return err
	}
	var deleted, parts []string
	for _, ch := range res.Msg.GetChanges() {
		switch ref := lb.Ref(lb.Kind(ch.GetKind()), ch.GetName()); {
		case ch.GetAction() == apiv1.Change_ACTION_DELETED:
			deleted = append(deleted, ref)
		case ch.GetAction() == apiv1.Change_ACTION_UPDATED && loses(ch.GetBefore().ProtoReflect(), ch.GetAfter().ProtoReflect()):
			parts = append(parts, "part of "+ref)
		}
	}
	if len(deleted)+len(parts) == 0 {
		return nil
	}
	if !a.Deletions {
		return single.Deletes{Objects: append(deleted, parts...)}
	}
	files, err := single.Files(b.f.file)
	if err != nil {
		return single.Transient{Err: err}
	}
	for _, file := range files {
		if len(deleted) > 0 && !slices.ContainsFunc(docs.all, func(d lb.Document) bool { return d.Filename == file }) {
			return emptyFile{file}
		}
	}
	if !a.Unchanged() {
		return single.Transient{Err: fmt.Errorf("%s: changed while it was read", b.f.file)}
	}
	return nil
}

// loses reports whether a message lacks a field or list items of its previous version, as a
// truncated file does.
func loses(before, after protoreflect.Message) bool {
	lost := false
	before.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch now := after.Get(f); {
		case f.Name() == "revision":
		case !after.Has(f):
			lost = true
		case f.IsMap():
			lost = now.Map().Len() < v.Map().Len()
		case f.IsList():
			lost = now.List().Len() < v.List().Len()
			for i := 0; !lost && f.Message() != nil && i < v.List().Len(); i++ {
				lost = loses(v.List().Get(i).Message(), now.List().Get(i).Message())
			}
		case f.Message() != nil:
			lost = loses(v.Message(), now.Message())
		}
		return !lost
	})
	return lost
}

// obeyed waits until the mux has applied a revision. The error contains the reason if it does not.
func (b *box) obeyed(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, obeyTimeout)
	defer cancel()
	why := errors.New("it is not connected")
	for {
		res, err := b.client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{Node: b.f.mux.name}))
		if err == nil {
			st := res.Msg.GetNodes()[0]
			switch {
			case st.GetError() != "":
				why = errors.New(st.GetError())
			case st.GetSyncedRevision() >= revision:
				return nil
			default:
				why = fmt.Errorf("it is at revision %d", st.GetSyncedRevision())
			}
		}
		why = cmp.Or(err, why)
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return single.Transient{Err: fmt.Errorf("stored at revision %d, but the mux does not obey it yet: %w", revision, why)}
		}
	}
}

// alive fails when the manager does not respond, and blocks when the mux's agent is stuck. Parts
// that are still starting are not checked.
func (b *box) alive(ctx context.Context) error {
	b.mu.Lock()
	c, a := b.client, b.agent
	b.mu.Unlock()
	if a != nil {
		a.Served()
	}
	if c == nil {
		return nil
	}
	if _, err := c.Version(ctx, connect.NewRequest(&apiv1.VersionRequest{})); err != nil {
		return c.explain(err)
	}
	return nil
}
