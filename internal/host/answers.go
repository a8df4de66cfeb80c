package host

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

const (
	// answersEvery is the period over which the SYNs, and new flows of UDP, that servers receive
	// are compared with the answers that leave by the uplink.
	answersEvery = 10 * time.Second
	// answersSYNs is how many SYNs or new flows a server must have received in a period to be
	// judged.
	answersSYNs = 8
	// answersPeriods is how many consecutive periods must be bad. A server that dies receives no
	// SYNs after the first two.
	answersPeriods = 2
	// answersQuiet is after how many periods without SYNs a server is no longer listed.
	answersQuiet = 30
	// answersNamed is how many servers a status lists.
	answersNamed = 16
)

// answers detects servers whose answers to SYNs do not leave by the uplink, where they would get
// the VIP as their source: a firewall with connection tracking dropped them, they left by another
// device, or the server sent none. Retransmitted SYNs count each. A UDP server need not answer. It
// is listed only if it answered before and then answers no new flow at all.
type answers struct {
	log *slog.Logger

	mu      sync.Mutex
	servers map[memberRef]*answering
}

// answering is a server of an endpoint.
type answering struct {
	name  string
	last  dataplane.BindingHandshakes
	bad   int // consecutive periods
	quiet int // consecutive periods without SYNs
	lost  bool
}

// look evaluates the totals at the end of a period. Servers that are dead by this host's own checks
// are not judged.
func (x *answers) look(all []dataplane.BindingHandshakes, dead func(memberRef) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.servers
	x.servers = make(map[memberRef]*answering, len(all))
	for _, now := range all {
		b := &now.Binding
		ref := memberRef{b.Key, b.Member}
		s := before[ref]
		if s == nil || now.Asked < s.last.Asked {
			s = &answering{name: answeringName(b), last: dataplane.BindingHandshakes{}}
			if before == nil {
				// After a start of the agent the earlier totals do not belong to this period.
				s.last = now
			}
		}
		x.servers[ref] = s
		asked, answered := now.Asked-s.last.Asked, now.Accepted+now.Refused-s.last.Accepted-s.last.Refused
		if b.Key.Protocol == lb.UDP {
			if now.Accepted == 0 {
				asked = 0 // it may be a server that never answers, as for syslog
			} else if answered > 0 {
				answered = asked
			}
		}
		s.last = now
		if asked == 0 {
			s.bad = 0
			if s.quiet++; s.quiet >= answersQuiet {
				s.lost = false
			}
			continue
		}
		s.quiet = 0
		if asked < answersSYNs && 2*answered < asked {
			continue // too few to judge
		}
		switch {
		case 2*answered >= asked:
			s.bad = 0
			if s.lost {
				s.lost = false
				x.log.Info("answers leave by the uplink again", "server", s.name)
			}
		case dead(ref):
			s.bad = 0
		default:
			s.bad++
			if s.bad >= answersPeriods && !s.lost {
				s.lost = true
				x.log.Warn("answers do not leave by the uplink", "server", s.name, "syns", asked, "answered", answered, "period", answersEvery)
			}
		}
	}
}

// answeringName returns the name of a server in a status: "203.0.113.10 TCP port 80 at 10.20.1.11".
func answeringName(b *plan.Binding) string {
	protocol := "TCP"
	if b.Key.Protocol == lb.UDP {
		protocol = "UDP"
	}
	return fmt.Sprintf("%s %s port %d at %s", b.Key.VIP, protocol, b.Key.Port, b.DIP)
}

// lost returns the names of the servers whose answers do not leave by the uplink, in order; at most
// answersNamed.
func (x *answers) lost() (out []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.servers {
		if s.lost {
			out = append(out, s.name)
		}
	}
	slices.Sort(out)
	return out[:min(len(out), answersNamed)]
}

// watchAnswers ends a period every answersEvery until ctx ends.
func watchAnswers(ctx context.Context, a *Agent) {
	for {
		if err := a.lookAtAnswers(); err != nil {
			a.log.Error("watch answers of servers", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.clock.After(answersEvery):
		}
	}
}

// lookAtAnswers ends a period.
func (a *Agent) lookAtAnswers() error {
	all, err := a.tables.Handshakes(func(*plan.Binding) bool { return true })
	if err != nil {
		return err
	}
	a.answers.look(all, a.checks.dead)
	return nil
}

// someClients represent clients: addresses of no network (RFC 5737, RFC 3849), so that the default
// route applies to them.
var someClients = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// otherWays returns a problem for each family whose default route leaves by the uplink and by other
// devices, too.
func (m Machine) otherWays() (found []Problem) {
	if m.Devices == nil {
		return nil
	}
	for _, client := range someClients {
		devices, err := m.Devices(client)
		if err != nil || !slices.Contains(devices, m.Interface) {
			// no default route, or the management network's: then clients have routes of their own
			continue
		}
		family, command := "IPv4", "ip"
		if client.Is6() {
			family, command = "IPv6", "ip -6"
		}
		for _, device := range slices.Sorted(slices.Values(devices)) {
			if device == m.Interface {
				continue
			}
			found = append(found, Problem{
				Text: fmt.Sprintf("the %s default route leaves by %s as well as by the uplink %s: answers that leave by %[2]s keep the server's address, and clients drop them",
					family, device, m.Interface),
				Cure:  fmt.Sprintf("%s route replace default via ROUTER dev %s, or bond the two devices and give shunt host the bond", command, m.Interface),
				Fatal: true,
			})
		}
	}
	return slices.CompactFunc(found, func(a, b Problem) bool { return cmp.Compare(a.Text, b.Text) == 0 })
}
