package lab

import (
	"context"

	"github.com/shuntlb/shunt/internal/netdev"
)

// standing reports whether the lab's namespaces exist, so that the rest can be repaired.
func (l *Lab) standing() bool {
	for _, n := range l.Topology.Nodes() {
		if !netdev.Exists(n.Namespace(l.Topology.Name)) {
			return false
		}
	}
	return true
}

// repairRouter restarts all routing daemons if one of them does not run, because they depend on
// each other.
func (l *Lab) repairRouter(ctx context.Context, processes []Process) error {
	recorded, alive := 0, 0
	for _, p := range processes {
		if p.Node != "router1" {
			continue
		}
		recorded++
		if p.Alive() {
			alive++
		}
	}
	if alive > 0 && alive == recorded {
		return nil
	}
	l.say("router1: starting again")
	if err := l.killAll(ctx, []Node{{Name: "router1", Kind: KindRouter, Index: 1}}); err != nil {
		return err
	}
	return l.startRouter(ctx)
}

// repair starts the missing processes of a standing lab, connects the muxes, and waits until all is
// ready. Applied objects stay.
func (l *Lab) repair(ctx context.Context) error {
	running := map[string]bool{}
	processes, err := l.Processes()
	if err != nil {
		return err
	}
	if err := l.repairRouter(ctx, processes); err != nil {
		return err
	}
	for _, p := range processes {
		running[p.Node+"/"+p.Name] = p.Alive()
	}
	for _, n := range l.Topology.Nodes() {
		if n.Kind == KindVM && !running[n.Name+"/"+serverProcess] {
			l.say("%s: starting its server again", n.Name)
			if err := l.StartServer(ctx, n.Name); err != nil {
				return err
			}
		}
	}
	if l.FabricOnly {
		return nil
	}
	if err := l.restartManagers(ctx, running); err != nil {
		return err
	}
	for _, n := range l.Topology.Nodes() {
		if n.Kind == KindMux {
			if err := l.setLink(n, true); err != nil {
				return err
			}
		}
		if (n.Kind == KindMux || n.Kind == KindHost) && !running[n.Name+"/"+agentProcess] {
			l.say("%s: starting its agent again", n.Name)
			if err := l.StartAgent(n.Name); err != nil {
				return err
			}
		}
	}
	return l.WaitReady(ctx)
}
