package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/netdev"
)

// stop is a condition's error that waiting longer cannot clear.
type stop struct{ error }

func (s stop) Unwrap() error { return s.error }

// WaitReady waits until every mux and host has applied the newest plan and every BGP session is
// established at both ends. Its error lists the missing conditions, with the end of the log of the
// first node that is not ready.
func (l *Lab) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	client, err := l.Client()
	if err != nil {
		return err
	}
	culprit := ""
	err = waitFor(ctx, "the agents", func(ctx context.Context) error {
		for _, n := range l.Topology.Nodes() {
			if n.Kind != KindMux && n.Kind != KindHost {
				continue
			}
			if err := l.died(n.Name, agentProcess); err != nil {
				culprit = n.Name
				return stop{err}
			}
		}
		answer, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
		if err != nil {
			culprit = "manager1"
			return err
		}
		var missing []string
		missing, culprit = l.missing(answer.Msg)
		if len(missing) > 0 {
			return errors.New(strings.Join(missing, "; "))
		}
		sessions, err := l.router().sessions(ctx)
		if err != nil {
			culprit = "router1"
			return err
		}
		for peer, state := range sessions {
			if state != "established" {
				culprit = "router1"
				missing = append(missing, fmt.Sprintf("router1: session with %s is %s", peer, state))
			}
		}
		if len(missing) > 0 {
			return errors.New(strings.Join(missing, "; "))
		}
		return nil
	})
	if err != nil && culprit != "" {
		return l.withLog(culprit, err)
	}
	return err
}

// missing lists the conditions that the lab's agents do not meet yet, and the first node concerned.
func (l *Lab) missing(s *apiv1.StatusResponse) (missing []string, culprit string) {
	byName := map[string]*apiv1.NodeStatus{}
	for _, n := range s.GetNodes() {
		byName[n.GetName()] = n
	}
	for _, n := range l.Topology.Nodes() {
		if n.Kind != KindMux && n.Kind != KindHost {
			continue
		}
		for _, m := range missingOf(n, byName[n.Name], s.GetRevision()) {
			missing = append(missing, n.Name+": "+m)
			if culprit == "" {
				culprit = n.Name
			}
		}
	}
	return missing, culprit
}

func missingOf(n Node, s *apiv1.NodeStatus, revision int64) (missing []string) {
	switch {
	case s == nil || !s.GetConnected():
		return []string{"not connected to the manager"}
	case s.GetError() != "":
		return []string{s.GetError()}
	case s.GetSyncedRevision() < revision:
		missing = append(missing, fmt.Sprintf("synced to revision %d of %d", s.GetSyncedRevision(), revision))
	}
	if n.Kind != KindMux {
		return missing
	}
	if len(s.GetPeers()) == 0 {
		missing = append(missing, "no BGP session")
	}
	for _, p := range s.GetPeers() {
		if p.GetState() != "established" {
			missing = append(missing, fmt.Sprintf("session with %s is %s", p.GetAddress(), p.GetState()))
		} else if p.GetBfd() != "up" && p.GetBfd() != "" {
			missing = append(missing, fmt.Sprintf("BFD with %s is %s", p.GetAddress(), p.GetBfd()))
		}
	}
	return missing
}

// WaitRoutes waits until the router has exactly this many next hops to both n-th VIPs.
func (l *Lab) WaitRoutes(ctx context.Context, n, hops int) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	v4, v6 := VIPAddresses(n)
	for _, vip := range []netip.Addr{v4, v6} {
		prefix := netip.PrefixFrom(vip, vip.BitLen())
		err := waitFor(ctx, fmt.Sprintf("%d next hops to %s at router1", hops, prefix), func(context.Context) error {
			via, err := l.RoutesAtRouter(prefix)
			if err == nil && len(via) != hops {
				err = fmt.Errorf("next hops are %v", via)
			}
			return err
		})
		if err != nil {
			return l.withLog("router1", err)
		}
	}
	return nil
}

// FirstAnswer sends HTTP requests to a target from a client until it responds.
func (l *Lab) FirstAnswer(ctx context.Context, client, target string) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	node, err := l.Topology.Find(client)
	if err != nil {
		return err
	}
	return waitFor(ctx, "an answer from "+target, func(context.Context) error {
		return netdev.In(node.Namespace(l.Topology.Name), func() error {
			_, err := get(target, time.Now().Add(firstAnswerTimeout))
			return err
		})
	})
}

// firstAnswerTimeout ends a try before TCP would retransmit its SYN, after one second.
const firstAnswerTimeout = 100 * time.Millisecond
