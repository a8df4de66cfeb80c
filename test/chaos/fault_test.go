//go:build chaos

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lab"
)

// fault breaks something and returns how it is mended.
type fault struct {
	name  string
	broke func(context.Context) (mend func(context.Context) error, err error)
}

// faults are all that the schedule draws from. mux1 and the servers are left alone: with muxes of equal rings no connection
// may break, whichever muxes go.
func faults(random *rand.Rand) []fault {
	var out []fault
	add := func(name string, broke func(context.Context) (func(context.Context) error, error)) {
		out = append(out, fault{name, broke})
	}
	managers := cluster.Topology.Managers
	manager := fmt.Sprintf("manager%d", 1+random.IntN(managers))
	other := fmt.Sprintf("manager%d", 1+random.IntN(managers))
	mux := fmt.Sprintf("mux%d", 2+random.IntN(cluster.Topology.Muxes-1))
	host := fmt.Sprintf("host%d", 1+random.IntN(cluster.Topology.Hosts.Count))
	add("kill -9 "+manager, func(ctx context.Context) (func(context.Context) error, error) {
		return func(context.Context) error { return cluster.StartManager(manager) }, cluster.KillManager(ctx, manager)
	})
	add("freeze "+manager, func(context.Context) (func(context.Context) error, error) {
		return func(context.Context) error { return cluster.FreezeManager(manager, false) }, cluster.FreezeManager(manager, true)
	})
	add("cut off "+manager, func(context.Context) (func(context.Context) error, error) {
		return func(context.Context) error { return cluster.SetLink(manager, true) }, cluster.SetLink(manager, false)
	})
	add("fill the disk of "+manager, func(ctx context.Context) (func(context.Context) error, error) { return fillDisk(ctx, manager) })
	for _, pair := range [][2]string{{manager, other}, {manager, mux}, {manager, host}} {
		if pair[0] != pair[1] {
			add("part "+pair[0]+" from "+pair[1], func(context.Context) (func(context.Context) error, error) {
				return func(context.Context) error { return part(pair[0], pair[1], false) }, part(pair[0], pair[1], true)
			})
		}
	}
	for _, node := range []string{mux, host} {
		add("kill -9 the agent of "+node, func(ctx context.Context) (func(context.Context) error, error) {
			return func(context.Context) error { return nil }, cluster.RestartAgent(ctx, node)
		})
	}
	add("lose "+mux, func(ctx context.Context) (func(context.Context) error, error) {
		return func(context.Context) error { return cluster.ReviveMux(mux) }, cluster.LoseMux(ctx, mux)
	})
	return out
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
		out, err := exec.Command("ip", "-n", cluster.Topology.Name+"-"+pair[0], "route", verb, "blackhole", to.Addresses().V4.Addr().String()+"/32").CombinedOutput()
		if err != nil {
			errs = append(errs, fmt.Errorf("part %s from %s: %w: %s", a, b, err, out))
		}
	}
	return errors.Join(errs...)
}

// diskBytes is the disk that a manager's data moves to before it is filled.
const diskBytes = 512 << 20

// fillDisk moves a manager's data to a small disk that is full then. The mend makes room and, where the manager ended meanwhile, starts it
// again; then the data goes back to where it was.
func fillDisk(ctx context.Context, manager string) (mend func(context.Context) error, err error) {
	data := filepath.Join(lab.Dir(cluster.Topology.Name), manager, "data")
	if err := cluster.KillManager(ctx, manager); err != nil {
		return nil, err
	}
	aside := data + ".aside"
	steps := errors.Join(os.Rename(data, aside), os.Mkdir(data, 0o700), unix.Mount("tmpfs", data, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", diskBytes)), copyDir(aside, data))
	if steps != nil {
		return nil, steps
	}
	if err := cluster.StartManager(manager); err != nil {
		return nil, err
	}
	time.Sleep(2 * time.Second) // it works from there for a while
	filler := filepath.Join(data, "filler")
	if out, err := exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=1M").CombinedOutput(); err == nil {
		return nil, fmt.Errorf("the disk is not full: %s", out)
	}
	return func(ctx context.Context) error {
		if err := os.Remove(filler); err != nil {
			return err
		}
		if err := cluster.KillManager(ctx, manager); err != nil {
			return err
		}
		err := errors.Join(os.RemoveAll(aside), os.Mkdir(aside, 0o700), copyDir(data, aside), unix.Unmount(data, 0), os.Remove(data), os.Rename(aside, data))
		return errors.Join(err, cluster.StartManager(manager))
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

// schedule breaks and mends, one thing at a time, until ctx ends. What is broken at the end is mended.
func schedule(ctx context.Context, t *testing.T, random *rand.Rand) (events int) {
	t.Helper()
	for ctx.Err() == nil {
		all := faults(random)
		f := all[random.IntN(len(all))]
		hold := time.Duration(500+random.IntN(6000)) * time.Millisecond
		t.Logf("%s: %s, for %s", time.Now().Format("15:04:05.000"), f.name, hold)
		mend, err := f.broke(context.Background())
		if err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		events++
		sleep(ctx, hold)
		if err := mend(context.Background()); err != nil {
			t.Fatalf("mend %s: %v", f.name, err)
		}
		sleep(ctx, time.Duration(random.IntN(4000))*time.Millisecond)
	}
	return events
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
