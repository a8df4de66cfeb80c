package chaos

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// mending undoes a fault.
type mending func(context.Context) error

// inflict does a step and returns its mending.
func inflict(ctx context.Context, s step) (mending, error) {
	a := s.a
	switch s.kind {
	case killManager:
		return func(context.Context) error { return cluster.StartManager(a) }, cluster.KillManager(ctx, a)
	case restartManager:
		return func(context.Context) error { return cluster.StartManager(a) }, cluster.StopManager(ctx, a)
	case freezeManager:
		return func(context.Context) error { return cluster.FreezeManager(a, false) }, cluster.FreezeManager(a, true)
	case unplugManager:
		return func(context.Context) error { return cluster.SetLink(a, true) }, cluster.SetLink(a, false)
	case fillManager:
		return fillDisk(ctx, managerDisk(a))
	case fillMux, fillHost:
		return fillDisk(ctx, agentDisk(a))
	case swapManager:
		return func(ctx context.Context) error {
			return errors.Join(cluster.KillManager(ctx, a), cluster.StartManager(a))
		}, errors.Join(cluster.StopManager(ctx, a), cluster.StartManagerFrom(a, otherBuild))
	case swapMuxAgent, swapHostAgent:
		return func(ctx context.Context) error {
			return errors.Join(cluster.KillAgent(ctx, a), cluster.StartAgent(a))
		}, errors.Join(cluster.KillAgent(ctx, a), cluster.StartAgentFrom(a, otherBuild))
	case removeMuxPins, removeHostPins:
		return removeFiles(ctx, a, cluster.Pins(a))
	case removeMuxRun, removeHostRun:
		return removeFiles(ctx, a, cluster.RunDir(a))
	case killSpeaker:
		return func(context.Context) error { return nil }, cluster.KillSpeaker(ctx, a)
	case freezeSpeaker:
		return func(context.Context) error { return cluster.FreezeSpeaker(a, false) }, cluster.FreezeSpeaker(a, true)
	case moveGateway:
		return changeGateway(a)
	case loseFrames:
		return dropFrames(a, s.to, "numgen random mod 100 < 10 counter drop")
	case muteMux:
		return dropFrames(a, s.to, "counter drop")
	case partNodes:
		muxesAndHosts.begin()
		return func(ctx context.Context) error {
			defer muxesAndHosts.end()
			if err := part(a, s.b, false); err != nil {
				return err
			}
			sleep(ctx, lateVerdict)
			return poll(ctx, func(ctx context.Context) error { return findsAllAlive(ctx, a) })
		}, part(a, s.b, true)
	case partManagers, partFromNode:
		return func(context.Context) error { return part(a, s.b, false) }, part(a, s.b, true)
	case killMuxAgent, killHostAgent:
		return func(context.Context) error { return cluster.StartAgent(a) }, cluster.KillAgent(ctx, a)
	case freezeMuxAgent, freezeHostAgent:
		return func(context.Context) error { return cluster.FreezeAgent(a, false) }, cluster.FreezeAgent(a, true)
	case loseMux:
		return func(context.Context) error { return cluster.ReviveMux(a) }, cluster.LoseMux(ctx, a)
	}
	return nil, fmt.Errorf("fault: %q: it is none", s.kind)
}

// part removes the routes of two nodes to each other, of each family that both have, or restores
// them.
func part(a, b string, parted bool) error {
	verb := "del"
	if parted {
		verb = "replace"
	}
	var errs []error
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		from, err := cluster.Topology.Find(pair[0])
		if err != nil {
			return err
		}
		to, err := cluster.Topology.Find(pair[1])
		if err != nil {
			return err
		}
		own := both(from.Addresses())
		for i, address := range both(to.Addresses()) {
			if own[i].IsValid() && address.IsValid() {
				errs = append(errs, ip(pair[0], familyOption(address), "route", verb, "blackhole", address.String()))
			}
		}
	}
	return errors.Join(errs...)
}

// lateVerdict is longer than checks that began before a path was restored: their verdict arrives
// after it.
const lateVerdict = 2 * time.Second

// findsAllAlive returns nil if a mux finds all servers of the connections healthy again.
func findsAllAlive(ctx context.Context, mux string) error {
	n, err := cluster.Topology.Find(mux)
	if err != nil {
		return err
	}
	m, err := metricsOf(ctx, n)
	if err == nil && len(m.alive) != cluster.Topology.Hosts.Count*len(echoes)*families {
		err = fmt.Errorf("%s finds %v alive", mux, m.alive)
	}
	return err
}

// ip runs ip(8) on a node.
func ip(node string, args ...string) error {
	_, err := ipOutput(node, args...)
	return err
}

// ipOutput runs ip(8) on a node and returns its output.
func ipOutput(node string, args ...string) (string, error) {
	args = append([]string{"-n", lab.Node{Name: node}.Namespace(cluster.Topology.Name)}, args...)
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("ip %v: %w: %s", args, err, out)
	}
	return string(out), err
}

// answers returns nil if a manager serves reads.
func answers(ctx context.Context, manager string) error {
	_, err := managers[manager].Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: "Network"}))
	return err
}
