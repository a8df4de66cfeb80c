package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/shuntlb/shunt/internal/bench/checker"
)

// DefaultRivals is the directory of the rivals' sources in the repository.
const DefaultRivals = "test/bench/rivals"

// contestant takes part in the health suite.
type contestant struct {
	engine string
	// start starts it on a rig, without any work yet.
	start func(context.Context, *healthRig, checker.Job) (runner, error)
	// atOnce means that it can also probe all targets together.
	atOnce bool
	// rules is the most targets that it supports. 0 means all.
	rules int
}

// shuntEngines are Shunt's engines, in the order of their rows.
var shuntEngines = []string{"packet", "socket"}

// contestants returns all that can take part here, and notes those that cannot.
func contestants(ctx context.Context, o Options) ([]contestant, error) {
	program, err := o.program()
	if err != nil {
		return nil, err
	}
	var all []contestant
	for _, engine := range shuntEngines {
		if checker.Has(engine) {
			all = append(all, contestant{engine: engine, start: byProgram(program, CheckerCommand), atOnce: true})
		}
	}
	tokio, err := buildTokio(ctx, o)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		o.notef("tokio: left out: %v", err)
	} else {
		all = append(all, contestant{engine: "tokio", start: byProgram(tokio), atOnce: true})
	}
	all = append(all, contestant{engine: "go", start: byProgram(program, CheckerCommand), atOnce: true})
	if _, err := exec.LookPath("haproxy"); err != nil {
		o.notef("haproxy: left out: haproxy is not installed")
	} else {
		all = append(all, contestant{engine: "haproxy", start: startHAProxy, rules: min(haproxyRules, healthInFlight())})
	}
	return all, nil
}

// program returns the shunt program.
func (o Options) program() (string, error) {
	if o.Program != "" {
		return o.Program, nil
	}
	return os.Executable()
}

// byProgram starts a program that takes a job by its flags.
func byProgram(program string, args ...string) func(context.Context, *healthRig, checker.Job) (runner, error) {
	return func(ctx context.Context, r *healthRig, job checker.Job) (runner, error) {
		return r.startProcess(ctx, program, append(args[:len(args):len(args)], job.Args()...)...)
	}
}

// buildTokio builds the rival in Rust, unless it is built, and returns the path of its program.
func buildTokio(ctx context.Context, o Options) (string, error) {
	dir := o.Rivals
	if dir == "" {
		dir = DefaultRivals
	}
	dir, err := filepath.Abs(filepath.Join(dir, "tokio"))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "Cargo.toml")); err != nil {
		return "", fmt.Errorf("its source is not at %s", filepath.Join(o.Rivals, "tokio"))
	}
	if _, err := exec.LookPath("cargo"); err != nil {
		return "", errors.New("cargo is not installed")
	}
	o.progressf("health: building the rival in Rust")
	command := exec.CommandContext(ctx, "cargo", "build", "--release", "--locked", "--quiet", "--target-dir", "target")
	command.Dir = dir
	var said bytes.Buffer
	command.Stderr = &said
	if err := command.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return "", fmt.Errorf("cargo build: %w: %s", err, lines[len(lines)-1])
	}
	return filepath.Join(dir, "target", "release", "shunt-rival-tokio"), nil
}
