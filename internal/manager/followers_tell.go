package manager

import (
	"context"
	"maps"
	"slices"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
)

// ask queues a request to a node. It returns false if too many wait.
func (f *follower) ask(node string, q *apiv1.PlanUpdate) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.questions) == maxRelayed {
		return false
	}
	f.questions = append(f.questions, &apiv1.RelayDown{Node: node, Update: q})
	notify.Send(f.wake)
	return true
}

// tellHealth queues verdicts of a host, merged with its pending ones.
func (f *follower) tellHealth(host string, opened int64, h *apiv1.HealthReport) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.verdicts[host]; old != nil {
		h = mergeHealth(old.GetReport().GetHealth(), h)
	}
	f.verdicts[host] = &apiv1.NodeSaid{
		Node: host, Role: string(lb.RoleHost), Report: &apiv1.NodeReport{Hello: &apiv1.Hello{Name: host, Opened: opened}, Health: h},
	}
	notify.Send(f.wake)
}

// tellAll queues the verdicts of all hosts. It is called once, before anything is sent.
func (f *follower) tellAll() {
	f.m.verdicts.telling.Lock()
	defer f.m.verdicts.telling.Unlock()
	for host, all := range f.m.verdicts.of() {
		f.tellHost(host, all)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = true
	notify.Send(f.wake)
}

// retell queues the verdicts of a host that left the follower for another member. While its stream
// was at the follower, the follower may have refused the reports that came through the other
// member, for example because the host's clock went back.
func (f *follower) retell(host string) {
	s := f.m.sessions.get(host)
	if s == nil || s.role != lb.RoleHost || s.via == f {
		return
	}
	f.m.verdicts.telling.Lock()
	defer f.m.verdicts.telling.Unlock()
	if all := f.m.verdicts.said(host); all != nil {
		f.tellHost(host, all)
	}
}

func (f *follower) tellHost(host string, all *apiv1.HealthReport) {
	opened := int64(0)
	if s := f.m.sessions.get(host); s != nil {
		opened = s.opened
	}
	f.tellHealth(host, opened, all)
}

// take removes and returns the pending messages.
func (f *follower) take() []*apiv1.RelayDown {
	f.mu.Lock()
	defer f.mu.Unlock()
	down := make([]*apiv1.RelayDown, 0, len(f.stored)+len(f.questions))
	for _, c := range f.stored {
		down = append(down, &apiv1.RelayDown{Stored: c})
	}
	down = append(down, f.questions...)
	for _, host := range slices.Sorted(maps.Keys(f.verdicts)) {
		down = append(down, &apiv1.RelayDown{Said: f.verdicts[host]})
	}
	if f.told {
		down = append(down, &apiv1.RelayDown{AllSaid: true})
	}
	f.stored, f.questions, f.told = nil, nil, false
	clear(f.verdicts)
	return down
}

// speak sends until the stream ends: stored changes, the progress of hosts at other members,
// requests, verdicts and loads.
func (f *follower) speak(stream *connect.BidiStream[apiv1.RelayUp, apiv1.RelayDown]) error {
	sent := map[string]*apiv1.HostProgress{}
	var news hostNews
	renew := f.m.o.Clock.After(0)
	// Earlier loads may be older than the follower's loads of its own hosts. They are sent again
	// soon.
	loads := f.m.loads.teller(f.m.o.Clock, func(origin string) bool { return origin == f.name }).fresh()
	for {
		account, stirred, advanced := f.m.ownHosts()
		own := account.progress
		others, moved := f.m.hosts.all()
		if !news.worth(account, f.m.o.Clock) {
			own = nil
		}
		all := withHosts(f.take(), f.newHosts(sent, own, others))
		if report := loads.take(); report != nil {
			all = append(all, &apiv1.RelayDown{Load: report})
		}
		for _, d := range all {
			if err := stream.Send(d); err != nil {
				return err
			}
		}
		select {
		case <-stirred:
		case <-advanced:
		case <-moved:
		case <-news.due:
			news.ripen()
		case <-loads.stirs():
			loads.come()
		case <-loads.dues():
			loads.rise()
		case <-f.wake:
		case <-renew:
			renew = f.m.o.Clock.After(snatRenew)
			if d := f.m.tellSNATNewest(); d != nil {
				if err := stream.Send(d); err != nil {
					return err
				}
			}
		case <-f.ctx.Done():
			return connect.NewError(connect.CodeUnavailable, context.Cause(f.ctx))
		}
	}
}

// withHosts appends host progress to messages. The first one goes into the last message if that
// holds a stored change, because each message costs both ends a system call and a goroutine switch.
func withHosts(down, hosts []*apiv1.RelayDown) []*apiv1.RelayDown {
	if n := len(down); n > 0 && len(hosts) > 0 && down[n-1].GetStored() != nil {
		down[n-1].Hosts, hosts = hosts[0].GetHosts(), hosts[1:]
	}
	return append(down, hosts...)
}

// newHosts returns the changes of host progress at other members since the progress in sent, and
// updates sent.
func (f *follower) newHosts(sent map[string]*apiv1.HostProgress, own *apiv1.HostProgress, others map[string]*apiv1.HostProgress) []*apiv1.RelayDown {
	delete(others, f.name)
	if own != nil {
		others[own.GetManager()] = own
	}
	var out []*apiv1.RelayDown
	for name, p := range others {
		if !sameHosts(sent[name], p) {
			sent[name] = p
			out = append(out, &apiv1.RelayDown{Hosts: p})
		}
	}
	for name := range sent {
		if others[name] == nil && name != f.m.o.Name {
			delete(sent, name)
			out = append(out, &apiv1.RelayDown{Hosts: &apiv1.HostProgress{Manager: name, Gone: true}})
		}
	}
	return out
}
