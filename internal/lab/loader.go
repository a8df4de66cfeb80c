package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
)

// Loader is a load generator in a separate process on a client of the lab.
type Loader struct {
	cmd     *exec.Cmd
	control io.WriteCloser
	windows chan Report

	mu     sync.Mutex
	totals Report
}

// StartLoad starts a load generator on a client. The first window has an empty label.
func (l *Lab) StartLoad(client string, o LoadOptions) (*Loader, error) {
	args := []string{"lab-load", "--control", "--rate", strconv.Itoa(o.Rate), "--timeout", o.Timeout.String(), "--report", o.ReportEvery.String()}
	cmd := l.Command(append(append([]string{l.Binary}, args...), o.Targets...)...)
	cmd.Stderr = os.Stderr
	control, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.StartOn(client, cmd); err != nil {
		return nil, err
	}
	load := &Loader{cmd: cmd, control: control, windows: make(chan Report, 64)}
	go load.read(out)
	return load, nil
}

// read reads the generator's lines until it ends.
func (g *Loader) read(out io.Reader) {
	defer close(g.windows)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var line LoadLine
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		if line.Window != nil {
			g.windows <- *line.Window
		}
		if line.Totals != nil {
			g.mu.Lock()
			g.totals = *line.Totals
			g.mu.Unlock()
		}
	}
}

// Mark begins a new window.
func (g *Loader) Mark(label string) error {
	if _, err := io.WriteString(g.control, label+"\n"); err != nil {
		return fmt.Errorf("mark %q: the load generator ended: %w", label, err)
	}
	return nil
}

// Totals returns the latest totals of the current window.
func (g *Loader) Totals() Report {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.totals
}

// Window returns the next finished window.
func (g *Loader) Window(ctx context.Context) (Report, error) {
	select {
	case r, ok := <-g.windows:
		if !ok {
			return r, errors.New("the load generator ended")
		}
		return r, nil
	case <-ctx.Done():
		return Report{}, ctx.Err()
	}
}

// Stop ends the generator and returns the windows that were not fetched yet.
func (g *Loader) Stop() ([]Report, error) {
	g.control.Close()
	var rest []Report
	for r := range g.windows {
		rest = append(rest, r)
	}
	if err := g.cmd.Wait(); err != nil {
		return rest, fmt.Errorf("load generator: %w", err)
	}
	return rest, nil
}
