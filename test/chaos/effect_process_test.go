package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// processOf returns the current process of a node.
func processOf(node, name string) (lab.Process, error) {
	all, err := cluster.Processes()
	if err != nil {
		return lab.Process{}, err
	}
	for _, p := range all {
		if p.Node == node && p.Name == name && p.Alive() {
			return p, nil
		}
	}
	return lab.Process{}, fmt.Errorf("%s of %s does not run", name, node)
}

// endedProcess returns whether the current process has ended.
func endedProcess(node, name string) (effect, error) {
	p, err := processOf(node, name)
	if err != nil {
		return nil, err
	}
	return func(context.Context) (int, error) {
		if p.Alive() {
			return 0, fmt.Errorf("%s of %s still runs as %d", name, node, p.Pid)
		}
		return 1, nil
	}, nil
}

// stoppedProcess returns whether the current process is stopped by a signal (proc_pid_stat(5),
// field 3).
func stoppedProcess(node, name string) (effect, error) {
	p, err := processOf(node, name)
	if err != nil {
		return nil, err
	}
	return func(context.Context) (int, error) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		if err != nil {
			return 0, err
		}
		if state := bytes.TrimSpace(b[bytes.LastIndexByte(b, ')')+1:])[0]; state != 'T' {
			return 0, fmt.Errorf("%s of %s has state %c", name, node, state)
		}
		return 1, nil
	}, nil
}

// linesSince counts the lines that a node's log gets from now on and that a pattern matches.
func linesSince(node string, pattern *regexp.Regexp) (func() (int, error), error) {
	path := cluster.LogPath(node)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	return func() (int, error) {
		f, err := os.Open(path)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		b, err := io.ReadAll(io.NewSectionReader(f, info.Size(), 1<<40))
		return len(pattern.FindAll(b, -1)), err
	}, nil
}

// noSpace matches the text of ENOSPC.
var noSpace = regexp.MustCompile(`(?m)^.*no space left on device.*$`)

// failedWrites counts the lines of the node's log that report a write that failed because the disk
// is full.
func failedWrites(node string) (effect, error) {
	count, err := linesSince(node, noSpace)
	if err != nil {
		return nil, err
	}
	return func(context.Context) (int, error) {
		n, err := count()
		if err == nil && n == 0 {
			err = fmt.Errorf("%s has reported no failed write", node)
		}
		return n, err
	}, nil
}

// versionOf returns the version that a program reports.
func versionOf(program string) (string, error) {
	out, err := exec.Command(program, "version", "--output", "json").Output()
	var v struct{ Client struct{ Version string } }
	if err = errors.Join(err, json.Unmarshal(out, &v)); err != nil || v.Client.Version == "" {
		return "", fmt.Errorf("version of %s: %q: %v", program, out, err)
	}
	return v.Client.Version, nil
}

// otherManager returns whether the manager's process reports the version of the other build.
func otherManager(name string) effect {
	return func(ctx context.Context) (int, error) {
		res, err := managers[name].Version(ctx, connect.NewRequest(&apiv1.VersionRequest{}))
		if err == nil && res.Msg.GetVersion() != otherVersion {
			err = fmt.Errorf("%s has version %q, the other build has %q", name, res.Msg.GetVersion(), otherVersion)
		}
		if err != nil {
			return 0, err
		}
		return 1, nil
	}
}

// otherAgent returns whether the agent's process reports the version of the other build.
func otherAgent(name string) (effect, error) {
	n, err := cluster.Topology.Find(name)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (int, error) {
		m, err := metricsOf(ctx, n)
		if err == nil && m.version != otherVersion {
			err = fmt.Errorf("%s has version %q, the other build has %q", name, m.version, otherVersion)
		}
		if err != nil {
			return 0, err
		}
		return 1, nil
	}, nil
}

// peerUp matches the line that a speaker writes for each established session.
var peerUp = regexp.MustCompile(`(?m)^.*msg="Peer Up" process=speaker.*$`)

// nextSpeaker counts the sessions that were established since now, after a new speaker has replaced
// the current one.
func nextSpeaker(mux string) (effect, error) {
	before, err := cluster.Speakers(mux)
	if err != nil {
		return nil, err
	}
	if len(before) == 0 {
		return nil, fmt.Errorf("%s has no speaker", mux)
	}
	count, err := linesSince(mux, peerUp)
	if err != nil {
		return nil, err
	}
	return func(context.Context) (int, error) {
		now, err := cluster.Speakers(mux)
		if err != nil {
			return 0, err
		}
		if len(now) == 0 || slices.ContainsFunc(now, func(p lab.Process) bool { return slices.Contains(before, p) }) {
			return 0, fmt.Errorf("%s has the speakers %v, had %v", mux, now, before)
		}
		n, err := count()
		if err == nil && n == 0 {
			err = fmt.Errorf("the speakers %v of %s have no session", now, mux)
		}
		return n, err
	}, nil
}
