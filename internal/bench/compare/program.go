package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/shuntlb/shunt/internal/bench"
)

// exitUsage is the exit code of a shunt without the suite, case or flag.
const exitUsage = 2

// Programs are the two builds as files, by Build.
type Programs struct {
	Paths [2]string
	// LabName names the lab that suites make and remove.
	LabName string
	// Short runs smoke tests. Their figures are meaningless.
	Short bool
}

// Measure runs `shunt bench SUITE --case NAME -o json`. It implements Measure.
func (p Programs) Measure(ctx context.Context, b Build, s bench.Suite, name string) (map[Figure]float64, error) {
	args := []string{"bench", s.Name, "--case", name, "-o", "json", "--name", p.LabName}
	if p.Short {
		args = append(args, "--short")
	}
	command := exec.CommandContext(ctx, p.Paths[b], args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitUsage {
		return nil, fmt.Errorf("%w: %s", ErrNoCase, lastLine(stderr.String()))
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %s", strings.Join(command.Args, " "), err, lastLine(stderr.String()))
	}
	return readFigures(s, name, &stdout)
}

// lastLine returns the last line of a program's messages.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
