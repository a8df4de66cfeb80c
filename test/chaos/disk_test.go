package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lab"
)

// disk is the data directory of a node, and how to stop and start the program that uses it.
type disk struct {
	dir string
	// bytes is the size of the disk that is filled.
	bytes int
	kill  func(context.Context) error
	start func() error
	// works reports that the program has used the disk.
	works func(context.Context) error
}

// managerDisk returns a manager's disk. etcd allocates 64 MiB for its log and as much for the next
// one.
func managerDisk(manager string) disk {
	return disk{
		dir: filepath.Join(lab.Dir(cluster.Topology.Name), manager, "data"), bytes: 384 << 20,
		kill:  func(ctx context.Context) error { return cluster.KillManager(ctx, manager) },
		start: func() error { return cluster.StartManager(manager) },
		works: func(ctx context.Context) error { return answers(ctx, manager) },
	}
}

// agentDisk returns the disk of the agent of a mux or host. If it is full at the agent's start, it
// already holds the agent's certificate and last plan.
func agentDisk(node string) disk {
	return disk{
		dir: cluster.StateDir(node), bytes: 1 << 20,
		kill:  func(ctx context.Context) error { return cluster.KillAgent(ctx, node) },
		start: func() error { return cluster.StartAgent(node) },
		works: func(context.Context) error {
			_, err := os.Stat(filepath.Join(cluster.StateDir(node), "plan.pb"))
			return err
		},
	}
}

// fillDisk moves a node's data to a small disk and fills it when the node works from there. Then it
// kills the program and starts it on the full disk, because a running manager writes for minutes
// into files that etcd allocated before. The mend frees space and restarts the program, which may
// have ended meanwhile. Then the data moves back.
func fillDisk(ctx context.Context, d disk) (mend mending, err error) {
	aside := d.dir + ".aside"
	if err := d.kill(ctx); err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return os.Rename(d.dir, aside) },
		func() error { return os.Mkdir(d.dir, 0o700) },
		func() error {
			return unix.Mount("tmpfs", d.dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", d.bytes))
		},
		func() error { return copyDir(aside, d.dir) },
		d.start,
		func() error { return poll(ctx, d.works) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	filler := filepath.Join(d.dir, "filler")
	if out, err := exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=4k").CombinedOutput(); err == nil {
		return nil, fmt.Errorf("the disk is not full: %s", out)
	}
	if err := errors.Join(d.kill(ctx), d.start()); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		for _, step := range []func() error{
			func() error { return os.Remove(filler) },
			func() error { return d.kill(ctx) },
			func() error { return os.RemoveAll(aside) },
			func() error { return os.Mkdir(aside, 0o700) },
			func() error { return copyDir(d.dir, aside) },
			func() error { return unix.Unmount(d.dir, 0) },
			func() error { return os.Remove(d.dir) },
			func() error { return os.Rename(aside, d.dir) },
			d.start,
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// copyDir copies a directory's content with its modes.
func copyDir(from, to string) error {
	out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}
