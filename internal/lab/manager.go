package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

const managerProcess = "manager"

// managers returns the lab's managers, in order.
func (t Topology) managers() []Node {
	var out []Node
	for i := 1; i <= t.Managers; i++ {
		out = append(out, Node{Name: fmt.Sprintf("%s%d", KindManager, i), Kind: KindManager, Index: i})
	}
	return out
}

// managerAddress returns the API address of a manager.
func managerAddress(n Node) string {
	return netip.AddrPortFrom(n.Addresses().V4.Addr(), ManagerPort).String()
}

// managerAddresses returns the addresses of all managers, as `--manager` accepts them.
func (l *Lab) managerAddresses() string {
	var all []string
	for _, n := range l.Topology.managers() {
		all = append(all, managerAddress(n))
	}
	return strings.Join(all, ",")
}

// startManagers starts the first manager, and then the others, which join it one by one.
func (l *Lab) startManagers(ctx context.Context) error {
	for _, n := range l.Topology.managers() {
		if err := l.startManager(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// restartManagers starts the managers that do not run. It starts all before it waits for any,
// because a single one may be no majority.
func (l *Lab) restartManagers(ctx context.Context, running map[string]bool) error {
	var started []Node
	for _, n := range l.Topology.managers() {
		if err := l.setLink(n, true); err != nil {
			return err
		}
		if running[n.Name+"/"+managerProcess] {
			continue
		}
		l.say("%s: starting again", n.Name)
		if err := l.StartManager(n.Name); err != nil {
			return err
		}
		started = append(started, n)
	}
	for _, n := range started {
		if err := l.awaitManager(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// StartManager starts a manager that ran before. It does not wait for it.
func (l *Lab) StartManager(name string) error { return l.StartManagerFrom(name, l.Binary) }

// StartManagerFrom is StartManager with another program than the lab's.
func (l *Lab) StartManagerFrom(name, program string) error {
	n, err := l.manager(name)
	if err != nil {
		return err
	}
	_, err = l.start(command{node: n, name: managerProcess, path: program, args: l.managerArgs(n)})
	return err
}

// KillManager kills a manager by SIGKILL and returns when it is gone.
func (l *Lab) KillManager(ctx context.Context, name string) error {
	if _, err := l.manager(name); err != nil {
		return err
	}
	return l.killNamed(ctx, name, managerProcess)
}

// StopManager ends a manager by SIGTERM and returns when it is gone.
func (l *Lab) StopManager(ctx context.Context, name string) error {
	if _, err := l.manager(name); err != nil {
		return err
	}
	p, err := l.process(name, managerProcess)
	if err != nil {
		return err
	}
	return p.kill(ctx, unix.SIGTERM)
}

// FreezeManager stops a manager's process without notice (SIGSTOP), or resumes it.
func (l *Lab) FreezeManager(name string, frozen bool) error {
	if _, err := l.manager(name); err != nil {
		return err
	}
	return l.freeze(name, managerProcess, frozen)
}

// SetLink removes or restores the carrier of any node except the router.
func (l *Lab) SetLink(name string, up bool) error {
	n, err := l.Topology.Find(name)
	if err != nil {
		return err
	}
	return l.setLink(n, up)
}

func (l *Lab) manager(name string) (Node, error) {
	n, err := l.Topology.Find(name)
	if err == nil && n.Kind != KindManager {
		err = fmt.Errorf("node: %q: must be a manager, such as manager1", name)
	}
	return n, err
}

func (l *Lab) managerArgs(n Node) []string {
	args := []string{
		"manager", "--name", n.Name, "--data", l.managerData(n.Name), "--listen", managerAddress(n), "--metrics", metricsAddress(n),
	}
	if l.Topology.Managers > 1 {
		args = append(args, "--peer", netip.AddrPortFrom(n.Addresses().V4.Addr(), PeerPort).String())
	}
	return append(args, l.managerFlags...)
}

// managerData returns a manager's data directory.
func (l *Lab) managerData(name string) string { return filepath.Join(l.nodeDir(name), "data") }

// startManager starts a manager and returns when it responds. A manager without data joins the
// first.
func (l *Lab) startManager(ctx context.Context, n Node) error {
	args := l.managerArgs(n)
	if _, err := os.Stat(l.managerData(n.Name)); errors.Is(err, os.ErrNotExist) && n.Index > 1 {
		client, err := l.Client()
		if err != nil {
			return err
		}
		if err := l.makeToken(ctx, client, n); err != nil {
			return err
		}
		args = append(args, "--join", managerAddress(l.Topology.managers()[0]), "--token-file", l.tokenPath(n.Name))
	}
	if _, err := l.start(command{node: n, name: managerProcess, path: l.Binary, args: args}); err != nil {
		return err
	}
	return l.awaitManager(ctx, n)
}

// awaitManager waits until a manager responds.
func (l *Lab) awaitManager(ctx context.Context, n Node) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	err := waitFor(ctx, n.Name+" to answer", func(ctx context.Context) error {
		if err := l.died(n.Name, managerProcess); err != nil {
			return stop{err}
		}
		client, err := l.ClientOf(n.Name)
		if err != nil {
			return err
		}
		// A read needs the member to have caught up, and a majority.
		_, err = client.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: "Node"}))
		return err
	})
	if err != nil {
		return l.withLog(n.Name, err)
	}
	l.say("%s: answers", n.Name)
	return nil
}
