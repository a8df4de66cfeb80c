package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/netdev"
)

// LoseMux simulates the loss of a machine: it first takes the link down, so that no further packet
// arrives, then kills every process on it. The router can detect the loss only by BFD.
func (l *Lab) LoseMux(ctx context.Context, name string) error {
	n, err := l.mux(name)
	if err != nil {
		return err
	}
	if err := l.setLink(n, false); err != nil {
		return err
	}
	return l.killAll(ctx, []Node{n})
}

// ReviveMux restarts a lost mux. It does not wait for its routes.
func (l *Lab) ReviveMux(name string) error {
	n, err := l.mux(name)
	if err != nil {
		return err
	}
	if err := l.setLink(n, true); err != nil {
		return err
	}
	return l.StartAgent(name)
}

// setLink sets the router's end of a mux's link. The mux loses or regains its carrier, and keeps
// its addresses.
func (l *Lab) setLink(n Node, up bool) error {
	router, err := netdev.OpenNamespace(Node{Name: "router1"}.Namespace(l.Topology.Name))
	if err != nil {
		return err
	}
	defer router.Close()
	return router.SetUp(n.Name, up)
}

// RestartAgent kills exactly the agent of a mux or host by SIGKILL, starts it again, and returns
// when the new one has reported to the manager. It does not touch the mux's speaker.
func (l *Lab) RestartAgent(ctx context.Context, name string) error {
	return l.ReplaceAgent(ctx, name, l.Binary)
}

// KillAgent kills exactly the agent of a mux or host by SIGKILL and returns when it is gone.
func (l *Lab) KillAgent(ctx context.Context, name string) error {
	return l.killNamed(ctx, name, agentProcess)
}

// FreezeAgent stops the agent of a mux or host without notice (SIGSTOP), or resumes it.
func (l *Lab) FreezeAgent(name string, frozen bool) error {
	return l.freeze(name, agentProcess, frozen)
}

// StartAgentFrom starts the agent of a mux or host from another program than the lab's. It does not
// wait.
func (l *Lab) StartAgentFrom(name, program string) error { return l.startAgent(name, program) }

// StateDir returns the state directory of a node's agent.
func (l *Lab) StateDir(node string) string { return filepath.Join(l.nodeDir(node), "state") }

// KillSpeaker kills the speakers of a mux by SIGKILL and returns when they are gone. It does not
// touch the agent.
func (l *Lab) KillSpeaker(ctx context.Context, mux string) error {
	return l.eachSpeaker(mux, func(p Process) error { return p.kill(ctx, unix.SIGKILL) })
}

// FreezeSpeaker stops the speakers of a mux without notice (SIGSTOP), or resumes them.
func (l *Lab) FreezeSpeaker(mux string, frozen bool) error {
	sig := unix.SIGCONT
	if frozen {
		sig = unix.SIGSTOP
	}
	return l.eachSpeaker(mux, func(p Process) error {
		if err := unix.Kill(p.Pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal the speaker of %s: %w", mux, err)
		}
		return nil
	})
}

// Speakers returns the running speakers of a mux.
func (l *Lab) Speakers(mux string) (all []Process, err error) {
	err = l.eachSpeaker(mux, func(p Process) error {
		all = append(all, p)
		return nil
	})
	return all, err
}

// speakerProgram is the subcommand that a mux's agent starts as its speaker.
const speakerProgram = "mux-speaker"

// eachSpeaker calls f with each running speaker of a mux: normally one.
func (l *Lab) eachSpeaker(mux string, f func(Process) error) error {
	n, err := l.mux(mux)
	if err != nil {
		return err
	}
	alive, _ := l.present([]Node{n})
	for _, p := range alive {
		if p.Name != speakerProgram {
			continue
		}
		if err := f(p); err != nil {
			return err
		}
	}
	return nil
}

// ReplaceAgent is RestartAgent with another program, and with flags in addition to the lab's own.
func (l *Lab) ReplaceAgent(ctx context.Context, name, program string, flags ...string) error {
	if err := l.KillAgent(ctx, name); err != nil {
		return err
	}
	since := time.Now()
	if err := l.startAgent(name, program, flags...); err != nil {
		return err
	}
	return l.waitReported(ctx, name, since)
}

// waitReported waits until a node has reported after the given time that it has applied the newest
// plan.
func (l *Lab) waitReported(ctx context.Context, name string, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	client, err := l.Client()
	if err != nil {
		return err
	}
	err = waitFor(ctx, name+" to report", func(ctx context.Context) error {
		if err := l.died(name, agentProcess); err != nil {
			return stop{err}
		}
		answer, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{Node: name}))
		if err != nil {
			return err
		}
		for _, n := range answer.Msg.GetNodes() {
			if n.GetName() != name || !n.GetConnected() || !n.GetLastSeen().AsTime().After(since) {
				continue
			}
			if n.GetSyncedRevision() >= answer.Msg.GetRevision() {
				return nil
			}
		}
		return errors.New("no report since its start")
	})
	if err != nil {
		return l.withLog(name, err)
	}
	return nil
}

func (l *Lab) mux(name string) (Node, error) {
	n, err := l.Topology.Find(name)
	if err != nil {
		return n, err
	}
	if n.Kind != KindMux {
		return n, fmt.Errorf("node: %q: must be a mux, such as mux1", name)
	}
	return n, nil
}
