package lab

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/netdev"
)

const serverProcess = "server"

// StartServer starts the server of a VM and returns when it accepts connections.
func (l *Lab) StartServer(ctx context.Context, vm string) error {
	node, err := l.vm(vm)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	_, err = l.start(command{node: node, name: serverProcess, path: l.Binary, args: []string{"lab-server", "--name", vm}})
	if err != nil {
		return err
	}
	address := netip.AddrPortFrom(node.Addresses().V4.Addr(), ServerPort).String()
	err = waitFor(ctx, vm+" to answer", func(ctx context.Context) error {
		conn, err := netdev.Dialer(node.Namespace(l.Topology.Name))(ctx, "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		return l.withLog(vm, err)
	}
	return nil
}

// StopServer kills the server of a VM. The VM itself stays.
func (l *Lab) StopServer(ctx context.Context, vm string) error {
	node, err := l.vm(vm)
	if err != nil {
		return err
	}
	return l.killNamed(ctx, node.Name, serverProcess)
}

func (l *Lab) vm(name string) (Node, error) {
	node, err := l.Topology.Find(name)
	if err != nil {
		return node, err
	}
	if node.Kind != KindVM {
		return node, fmt.Errorf("node: %q: must be a virtual machine, such as host1-vm1", name)
	}
	return node, nil
}

// killNamed kills one recorded process of a node by SIGKILL.
func (l *Lab) killNamed(ctx context.Context, node, name string) error {
	p, err := l.process(node, name)
	if err != nil {
		return err
	}
	return p.kill(ctx, unix.SIGKILL)
}

// process returns the process that was recorded last under a name.
func (l *Lab) process(node, name string) (Process, error) {
	processes, err := l.Processes()
	if err != nil {
		return Process{}, err
	}
	for _, p := range processes {
		if p.Node == node && p.Name == name {
			return p, nil
		}
	}
	return Process{}, fmt.Errorf("%s on %s: no such process is recorded", name, node)
}

// freeze stops exactly one process without notice, or resumes it. It returns when all its threads
// are stopped.
func (l *Lab) freeze(node, name string, frozen bool) error {
	p, err := l.process(node, name)
	if err != nil {
		return err
	}
	if !p.Alive() {
		return fmt.Errorf("%s on %s: it does not run", name, node)
	}
	sig := unix.SIGCONT
	if frozen {
		sig = unix.SIGSTOP
	}
	if err := unix.Kill(p.Pid, sig); err != nil || !frozen {
		return err
	}
	return stopped(p.Pid)
}

// stopped waits until all threads of a process are stopped, because a signal stops them
// asynchronously.
func stopped(pid int) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		states, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			return err
		}
		running := slices.ContainsFunc(states, func(path string) bool {
			text, err := os.ReadFile(path)
			// "tid (name) state …", where the name may contain any byte (proc(5)).
			_, state, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
			return err == nil && !strings.HasPrefix(state, "T")
		})
		if !running {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not stop", pid)
		}
	}
}
