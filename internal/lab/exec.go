package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/shuntlb/shunt/internal/netdev"
)

// Replace replaces this process by a command on a node, as `nsenter --net` does. The command keeps
// the terminal, signals and exit code, and the bpf file system stays visible. Replace returns only
// if that failed.
func (l *Lab) Replace(node string, argv []string) error {
	n, err := l.Topology.Find(node)
	if err != nil {
		return err
	}
	if len(argv) == 0 {
		return errors.New("command: none given")
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("run on %s: %w", node, err)
	}
	err = netdev.In(n.Namespace(l.Topology.Name), func() error {
		return syscall.Exec(path, argv, l.environment())
	})
	return fmt.Errorf("run %s on %s: %w", argv[0], node, err)
}

// Command prepares a command that StartOn runs on a node.
func (l *Lab) Command(argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = l.environment()
	return cmd
}

// StartOn starts a command in a node's namespace.
func (l *Lab) StartOn(node string, cmd *exec.Cmd) error {
	n, err := l.Topology.Find(node)
	if err != nil {
		return err
	}
	if err := netdev.In(n.Namespace(l.Topology.Name), cmd.Start); err != nil {
		return fmt.Errorf("run %s on %s: %w", cmd.Path, node, err)
	}
	return nil
}

// environment returns this process's environment with the lab's variable.
func (l *Lab) environment() []string {
	return append(os.Environ(), labVariable+"="+l.Topology.Name)
}
