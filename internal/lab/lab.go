package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/doctor"
	"github.com/shuntlb/shunt/internal/netdev"
)

// Lab is an existing lab.
type Lab struct {
	Topology Topology
	// Binary is the shunt program that the lab's daemons run.
	Binary   string
	progress func(string)
	// FabricOnly means without manager and agents.
	FabricOnly bool
	// managerFlags are those of Options.
	managerFlags []string
}

// Options configure Up and Open.
type Options struct {
	// Binary is the shunt program to run. Empty means this program.
	Binary string
	// Progress receives each step as one line. It may be nil. It is called from one goroutine at a
	// time.
	Progress func(string)
	// FabricOnly builds the network, the router and the servers, but starts no manager and no
	// agents.
	FabricOnly bool
	// ManagerFlags are flags of managers in addition to the lab's own.
	ManagerFlags []string
}

// readyWithin bounds the time until any one part of a lab is ready. On two cores with a load of 40,
// seven agents that load their programs at the same time take more than 30 seconds.
const readyWithin = 2 * time.Minute

// Up brings a lab up and returns when all nodes are synced and all BGP sessions are established. If
// the lab is already up, Up restarts only the missing processes. An incomplete lab is removed and
// built again.
func Up(ctx context.Context, t Topology, o Options) (*Lab, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if err := needRoot(); err != nil {
		return nil, err
	}
	if err := needMachine(doctor.Local{}); err != nil {
		return nil, err
	}
	unlock, err := lock(t.Name)
	if err != nil {
		return nil, err
	}
	defer unlock(false)
	l, err := newLab(t, o)
	if err != nil {
		return nil, err
	}
	switch present, err := loadState(t.Name); {
	case err == nil && present.Complete && l.standing():
		if present.Topology != t || present.FabricOnly != o.FabricOnly {
			return nil, fmt.Errorf("lab %s is up with another topology: `shunt lab down --name %s` first", t.Name, t.Name)
		}
		l.say("lab %s is up already", t.Name)
		return l, l.repair(ctx)
	case exists(Dir(t.Name)) == nil:
		l.say("lab %s is not whole: building it anew", t.Name)
		if err := l.remove(ctx); err != nil {
			return nil, err
		}
	}
	return l, l.build(ctx)
}

// Open returns a lab that is up.
func Open(name string, o Options) (*Lab, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := needRoot(); err != nil {
		return nil, err
	}
	s, err := loadState(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab %s: there is no such lab; `shunt lab up --name %s` makes it", name, name)
	}
	if err != nil {
		return nil, err
	}
	o.FabricOnly = s.FabricOnly
	return newLab(s.Topology, o)
}

// Down removes a lab: its processes, namespaces, pins and files. It is no error if the lab does not
// exist.
func Down(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if err := needRoot(); err != nil {
		return err
	}
	unlock, err := lock(name)
	if err != nil {
		return err
	}
	l := &Lab{Topology: Topology{Name: name}}
	if s, err := loadState(name); err == nil {
		l.Topology = s.Topology
	}
	err = l.remove(ctx)
	unlock(err == nil)
	return err
}

func newLab(t Topology, o Options) (*Lab, error) {
	l := &Lab{Topology: t, Binary: o.Binary, progress: o.Progress, FabricOnly: o.FabricOnly, managerFlags: o.ManagerFlags}
	if l.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the shunt program: %w", err)
		}
		l.Binary = self
	}
	return l, nil
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("a lab consists of network namespaces: this must be run as root")
	}
	return nil
}

// needMachine refuses a machine whose kernel cannot run the agents, before anything is built on it.
func needMachine(m doctor.Machine) error {
	for _, r := range doctor.RunBasics(m) {
		if r.Status == doctor.Fail {
			return fmt.Errorf("this machine cannot run a lab: %s: %s (cure: %s)", r.Check, r.Found, r.Cure)
		}
	}
	return nil
}

func (l *Lab) say(format string, args ...any) {
	if l.progress != nil {
		l.progress(fmt.Sprintf(format, args...))
	}
}

func (l *Lab) nodeDir(node string) string { return filepath.Join(Dir(l.Topology.Name), node) }

// LogPath returns the log of all processes of a node.
func (l *Lab) LogPath(node string) string { return filepath.Join(l.nodeDir(node), "log") }

// build makes everything from scratch. After an error the lab is left for inspection. The next Up
// removes it.
func (l *Lab) build(ctx context.Context) error {
	s := state{Topology: l.Topology, FabricOnly: l.FabricOnly}
	if err := makeOpenDir(Dir(l.Topology.Name)); err != nil {
		return err
	}
	if err := s.save(); err != nil {
		return err
	}
	if err := l.makePassword(); err != nil {
		return err
	}
	if err := mountBPF(); err != nil {
		return err
	}
	if err := buildNetwork(l.Topology); err != nil {
		return err
	}
	l.say("network: %d namespaces", len(l.Topology.Nodes()))
	steps := []func(context.Context) error{l.startRouter, l.startServers}
	if !l.FabricOnly {
		steps = append(steps, l.startShunt)
	}
	if err := together(ctx, steps...); err != nil {
		return err
	}
	s.Complete = true
	return s.save()
}

// remove removes every existing part of the lab.
func (l *Lab) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	nodes := l.Topology.Nodes()
	if err := l.killAll(ctx, nodes); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(bpfRoot, l.Topology.Name)); err != nil {
		return fmt.Errorf("remove pins of lab %s: %w", l.Topology.Name, err)
	}
	_ = os.Remove(bpfRoot) // stays while other labs have pins
	for _, n := range nodes {
		if err := netdev.DeleteNamespace(n.Namespace(l.Topology.Name)); err != nil {
			return err
		}
	}
	for _, n := range l.Topology.managers() {
		// A test may have mounted a separate disk for its data.
		if err := unix.Unmount(l.managerData(n.Name), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount the data of %s: %w", n.Name, err)
		}
	}
	if err := os.RemoveAll(Dir(l.Topology.Name)); err != nil {
		return fmt.Errorf("remove files of lab %s: %w", l.Topology.Name, err)
	}
	return nil
}

// startRouter starts the routing daemons and waits until they accept sessions.
func (l *Lab) startRouter(ctx context.Context) error {
	password, err := l.password()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	r := l.router()
	if err := r.start(ctx, l, newRouterConfig(l.Topology, password)); err != nil {
		return err
	}
	if err := waitFor(ctx, "router1 to be ready", r.ready); err != nil {
		return l.withLog("router1", err)
	}
	l.say("router1: %s is ready", l.Topology.Routers.Daemon)
	return nil
}

func (l *Lab) router() router { return newRouter(l.Topology.Routers.Daemon, l.nodeDir("router1")) }

// startServers starts the server of every VM and waits until each responds.
func (l *Lab) startServers(ctx context.Context) error {
	var steps []func(context.Context) error
	for _, n := range l.Topology.Nodes() {
		if n.Kind == KindVM {
			steps = append(steps, func(ctx context.Context) error { return l.StartServer(ctx, n.Name) })
		}
	}
	if err := together(ctx, steps...); err != nil {
		return err
	}
	l.say("servers: %d answer", len(steps))
	return nil
}

// together runs steps in parallel and returns the first error. It then cancels the others and waits
// for them.
func together(ctx context.Context, steps ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, step := range steps {
		wg.Go(func() {
			if err := step(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
