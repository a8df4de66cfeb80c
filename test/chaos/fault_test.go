package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// mending takes a fault back.
type mending func(context.Context) error

// inflict does a step and returns what takes it back.
func inflict(ctx context.Context, s step) (mending, error) {
	a := s.a
	switch s.kind {
	case killManager:
		return func(context.Context) error { return cluster.StartManager(a) }, cluster.KillManager(ctx, a)
	case restartManager:
		return func(context.Context) error { return cluster.StartManager(a) }, cluster.StopManager(ctx, a)
	case freezeManager:
		return func(context.Context) error { return cluster.FreezeManager(a, false) }, cluster.FreezeManager(a, true)
	case unplugManager:
		return func(context.Context) error { return cluster.SetLink(a, true) }, cluster.SetLink(a, false)
	case fillManager:
		return fillDisk(ctx, a)
	case partNodes:
		muxesAndHosts.begin()
		return func(ctx context.Context) error {
			defer muxesAndHosts.end()
			if err := part(a, s.b, false); err != nil {
				return err
			}
			sleep(ctx, lateVerdict)
			return poll(ctx, func(ctx context.Context) error { return findsAllAlive(ctx, a) })
		}, part(a, s.b, true)
	case partManagers, partFromNode:
		return func(context.Context) error { return part(a, s.b, false) }, part(a, s.b, true)
	case killMuxAgent, killHostAgent:
		return func(context.Context) error { return cluster.StartAgent(a) }, cluster.KillAgent(ctx, a)
	case freezeMuxAgent, freezeHostAgent:
		return func(context.Context) error { return cluster.FreezeAgent(a, false) }, cluster.FreezeAgent(a, true)
	case loseMux:
		return func(context.Context) error { return cluster.ReviveMux(a) }, cluster.LoseMux(ctx, a)
	}
	return nil, fmt.Errorf("fault: %q: it is none", s.kind)
}

// part takes the routes of two nodes to each other, or gives them back.
func part(a, b string, parted bool) error {
	verb := "del"
	if parted {
		verb = "replace"
	}
	var errs []error
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		to, err := cluster.Topology.Find(pair[1])
		if err != nil {
			return err
		}
		errs = append(errs, ip(pair[0], "route", verb, "blackhole", to.Addresses().V4.Addr().String()+"/32"))
	}
	return errors.Join(errs...)
}

// lateVerdict is longer than the checks take that began before a way was there again: their verdict comes after it.
const lateVerdict = 2 * time.Second

// findsAllAlive tells whether a mux finds all servers of the connections alive again.
func findsAllAlive(ctx context.Context, mux string) error {
	n, err := cluster.Topology.Find(mux)
	if err != nil {
		return err
	}
	m, err := metricsOf(ctx, n)
	if err == nil && len(m.alive) != cluster.Topology.Hosts.Count*len(echoes) {
		err = fmt.Errorf("%s finds %v alive", mux, m.alive)
	}
	return err
}

// ip runs ip(8) on a node.
func ip(node string, args ...string) error {
	args = append([]string{"-n", lab.Node{Name: node}.Namespace(cluster.Topology.Name)}, args...)
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, out)
	}
	return nil
}

// diskBytes is the disk that a manager's data moves to before it is filled: etcd has 64 MiB of its log and as much of the
// next one.
const diskBytes = 384 << 20

// fillDisk moves a manager's data to a small disk and, when it answers from there, fills it. The mend makes room and, where
// the manager ended meanwhile, starts it again; then the data goes back to where it was.
func fillDisk(ctx context.Context, manager string) (mend mending, err error) {
	data := filepath.Join(lab.Dir(cluster.Topology.Name), manager, "data")
	aside := data + ".aside"
	if err := cluster.KillManager(ctx, manager); err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return os.Rename(data, aside) },
		func() error { return os.Mkdir(data, 0o700) },
		func() error {
			return unix.Mount("tmpfs", data, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", diskBytes))
		},
		func() error { return copyDir(aside, data) },
		func() error { return cluster.StartManager(manager) },
		func() error { return poll(ctx, func(ctx context.Context) error { return answers(ctx, manager) }) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	filler := filepath.Join(data, "filler")
	if out, err := exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=1M").CombinedOutput(); err == nil {
		return nil, fmt.Errorf("the disk is not full: %s", out)
	}
	return func(ctx context.Context) error {
		for _, step := range []func() error{
			func() error { return os.Remove(filler) },
			func() error { return cluster.KillManager(ctx, manager) },
			func() error { return os.RemoveAll(aside) },
			func() error { return os.Mkdir(aside, 0o700) },
			func() error { return copyDir(data, aside) },
			func() error { return unix.Unmount(data, 0) },
			func() error { return os.Remove(data) },
			func() error { return os.Rename(aside, data) },
			func() error { return cluster.StartManager(manager) },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// answers tells whether a manager serves reads.
func answers(ctx context.Context, manager string) error {
	_, err := managers[manager].Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: "Network"}))
	return err
}

// copyDir copies a directory's content with its modes.
func copyDir(from, to string) error {
	out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}
