package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/bench/checker"
)

// haproxyRules is how many servers HAProxy checks here, because it needs a file descriptor for
// each.
const haproxyRules = 10_000

// haproxy is HAProxy with only its checks. It spreads them over the interval by itself and begins
// when it starts.
type haproxy struct {
	rig     *healthRig
	ctx     context.Context
	dir     string
	command *exec.Cmd
	said    bytes.Buffer
}

func startHAProxy(ctx context.Context, r *healthRig, job checker.Job) (runner, error) {
	dir, err := os.MkdirTemp("", "shunt-bench-haproxy")
	if err != nil {
		return nil, err
	}
	h := &haproxy{rig: r, ctx: ctx, dir: dir}
	if err := os.WriteFile(h.file("config"), haproxyConfig(job, h.file("socket")), 0o600); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *haproxy) file(name string) string { return filepath.Join(h.dir, name) }

// haproxyConfig returns a configuration with one backend whose servers are the targets.
func haproxyConfig(job checker.Job, socket string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "global\n  stats socket %s mode 600 level admin\n  maxconn 100\n  nbthread 1\n  spread-checks 0\n", socket)
	fmt.Fprintf(&b, "defaults\n  mode tcp\n  timeout connect %[1]dms\n  timeout check %[1]dms\n  timeout client 1s\n  timeout server 1s\n", job.Timeout.Milliseconds())
	b.WriteString("backend targets\n")
	if job.Kind == checker.HTTP {
		b.WriteString("  option httpchk GET /\n")
	} else {
		b.WriteString("  option tcp-check\n")
	}
	fmt.Fprintf(&b, "  default-server check inter %dms\n", job.Interval.Milliseconds())
	for i := range job.Targets {
		fmt.Fprintf(&b, "  server s%d %s\n", i, job.Target(i))
	}
	return b.Bytes()
}

func (h *haproxy) prepare() error { return nil }

func (h *haproxy) once() (checker.Tally, error) {
	return checker.Tally{}, errors.New("haproxy: cannot probe all servers at once")
}

// haproxyWithin bounds the time until HAProxy serves its socket.
const haproxyWithin = 30 * time.Second

func (h *haproxy) steady() error {
	h.command = exec.CommandContext(h.ctx, "haproxy", "-db", "-f", h.file("config"))
	h.command.Stderr = &h.said
	if err := h.rig.start(h.command); err != nil {
		return fmt.Errorf("start haproxy: %w", err)
	}
	for deadline := time.Now().Add(haproxyWithin); ; {
		if _, err := os.Stat(h.file("socket")); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("haproxy: has no socket after %s: %s", haproxyWithin, strings.TrimSpace(h.said.String()))
		}
		if err := pause(h.ctx, pollEvery); err != nil {
			return err
		}
	}
}

// report counts failed checks as bad verdicts, and servers that are up as good ones.
func (h *haproxy) report(string) (checker.Tally, error) {
	conn, err := net.Dial("unix", h.file("socket"))
	if err != nil {
		return checker.Tally{}, fmt.Errorf("haproxy: %w: %s", err, strings.TrimSpace(h.said.String()))
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "show stat -1 4 -1\n"); err != nil {
		return checker.Tally{}, err
	}
	return parseHAProxy(conn)
}

// parseHAProxy reads the CSV of `show stat`, whose first line names the columns.
func parseHAProxy(r io.Reader) (t checker.Tally, err error) {
	in := csv.NewReader(bufio.NewReader(r))
	in.FieldsPerRecord = -1
	head, err := in.Read()
	if err != nil {
		return t, fmt.Errorf("haproxy: show stat: %w", err)
	}
	at := map[string]int{}
	for i, name := range head {
		at[name] = i
	}
	status, failed := at["status"], at["chkfail"]
	if status == 0 || failed == 0 {
		return t, fmt.Errorf("haproxy: show stat: columns %v lack status or chkfail", head)
	}
	for {
		line, err := in.Read()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return t, fmt.Errorf("haproxy: show stat: %w", err)
		}
		if len(line) <= max(status, failed) {
			continue
		}
		if n, err := strconv.ParseUint(line[failed], 10, 64); err == nil {
			t.Bad += n
		}
		if strings.HasPrefix(line[status], "UP") {
			t.Good++
		}
	}
}

func (h *haproxy) spent() (time.Duration, error) { return processTime(h.command.Process.Pid) }

func (h *haproxy) close() error {
	if h.command != nil && h.command.Process != nil {
		_ = h.command.Process.Kill()
		_ = h.command.Wait()
	}
	return os.RemoveAll(h.dir)
}
