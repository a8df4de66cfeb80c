package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/shuntlb/shunt/internal/netdev"
)

// Exec runs a command on a node as `nsenter --net` does, so that the bpf file system stays visible, and returns its
// exit code. An error means that it did not run.
func (l *Lab) Exec(ctx context.Context, node string, argv []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	n, err := l.Topology.Find(node)
	if err != nil {
		return 0, err
	}
	if len(argv) == 0 {
		return 0, errors.New("command: none given")
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.Env = append(os.Environ(), labVariable+"="+l.Topology.Name)
	if err := netdev.In(n.Namespace(l.Topology.Name), cmd.Start); err != nil {
		return 0, fmt.Errorf("run %s on %s: %w", argv[0], node, err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		if code := exit.ExitCode(); code >= 0 {
			return code, nil
		}
		return 128 + signalOf(exit), nil // as shells do
	}
	if err != nil {
		return 0, fmt.Errorf("run %s on %s: %w", argv[0], node, err)
	}
	return 0, nil
}
