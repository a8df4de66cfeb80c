package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// A farm is a large number of servers at the router: it owns their addresses, and one program
// responds for all.
const (
	farmSize  = 1000
	farmSick  = 10 // one of this many responds 503
	farmPort  = 8088
	farmNet   = "10.20.200.0/22"
	farmAtMux = "mux1" // whose requests are counted
)

// farmAddress returns the address of a server, from 0.
func farmAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 20, byte(200 + (i+1)/256), byte((i + 1) % 256)})
}

// farm counts the requests of a mux to each server.
type farm struct {
	asker netip.Addr

	mu     sync.Mutex
	counts map[netip.Addr]int
}

func newFarm(t *testing.T) *farm {
	t.Helper()
	mux, err := shared.Topology.Find(farmAtMux)
	if err != nil {
		t.Fatal(err)
	}
	router := lab.Node{Name: "router1"}.Namespace(shared.Topology.Name)
	runIP(t, router, "route", "add", "local", farmNet, "dev", "lo")
	t.Cleanup(func() { runIP(t, router, "route", "delete", "local", farmNet, "dev", "lo") })
	f := &farm{asker: mux.Addresses().V4.Addr(), counts: map[netip.Addr]int{}}
	var listener net.Listener
	err = netdev.In(router, func() (err error) {
		listener, err = net.Listen("tcp4", ":"+strconv.Itoa(farmPort))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go http.Serve(listener, f) //nolint:errcheck // it ends with the listener
	return f
}

// ServeHTTP implements http.Handler.
func (f *farm) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	server := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).AddrPort().Addr().Unmap()
	if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && from.Addr().Unmap() == f.asker {
		f.mu.Lock()
		f.counts[server]++
		f.mu.Unlock()
	}
	switch {
	case r.URL.Path == "/hang":
		<-r.Context().Done() // the client closes the connection
	case r.URL.Path != "/well" && sick(server):
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// sick reports whether a server responds 503.
func sick(server netip.Addr) bool {
	b := server.As4()
	return (int(b[2]-200)*256+int(b[3])-1)%farmSick == 0
}

// asked returns how many sick servers got at least `often` requests, how many others got any, and
// the most requests to one of these.
func (f *farm) asked(often int) (sicks, others, most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for server, n := range f.counts {
		switch {
		case !sick(server):
			others++
			most = max(most, n)
		case n >= often:
			sicks++
		}
	}
	return sicks, others, most
}

// forget clears the counts.
func (f *farm) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.counts)
}

// entries returns the farm's servers as backends.
func entries(from, to int) func(lab.Node) string {
	return func(lab.Node) string {
		var b strings.Builder
		for i := from; i < to; i++ {
			fmt.Fprintf(&b, "  - {dip: %q, port: %d, host: %q}\n", farmAddress(i), farmPort, lab.HostAddresses(1).V4.Addr())
		}
		return b.String()
	}
}

// The agent of a mux is killed while it checks a thousand servers, some of them dead. The next
// agent has the health of each immediately, changes no verdict, and spreads the probes of healthy
// servers over the interval.
func TestKilledAgentAsksWithoutAStorm(t *testing.T) {
	logsOnFailure(t, shared)
	f := newFarm(t)
	// One failed check gives a verdict. A busy machine may take the whole interval to respond.
	const health = "{http: {path: /}, through: direct, interval: 20s, timeout: 10s, rise: 1, fall: 1}"
	const dead, alive = farmSize / farmSick, farmSize - farmSize/farmSick
	web := service{
		name: "killed", number: 110, protocol: "tcp", port: 80, backends: []string{"host1-vm1"}, only4: true, health: health,
		entry: entries(0, farmSize),
	}
	// No server is healthy, so all count as healthy, and the tables do not show their health.
	open := service{
		name: "killedopen", number: 111, protocol: "tcp", port: 80, backends: []string{"host1-vm1"}, only4: true, health: health,
		entry: entries(farmSick, farmSick+1), more: "  failOpen: true\n",
	}
	web.apply(t)
	open.apply(t)
	await(t, "a verdict on each server", func(ctx context.Context) error {
		w, o := membersAt(ctx, t, web.name), membersAt(ctx, t, open.name)
		if w.alive != alive || w.dead != dead || w.unknown != 0 || o.dead != 1 || o.unknown != 0 {
			return fmt.Errorf("%+v, open %+v", w, o)
		}
		return nil
	})
	web.awaitHops(t, shared.Topology.Muxes)
	open.awaitHops(t, shared.Topology.Muxes)

	if err := shared.KillAgent(t.Context(), farmAtMux); err != nil {
		t.Fatal(err)
	}
	f.forget()
	if err := shared.StartAgent(farmAtMux); err != nil {
		t.Fatal(err)
	}
	// The sick are probed immediately, and again at a random time within the interval. When half of
	// them were, half of the interval has passed.
	remembered := false
	await(t, "half of the sick are asked twice", func(ctx context.Context) error {
		w, o := membersAt(ctx, t, web.name), membersAt(ctx, t, open.name)
		if w.alive+w.dead == farmSize && (w.alive != alive || w.dead != dead) {
			t.Fatalf("verdicts changed: %+v", w)
		}
		if o.alive != 0 {
			t.Fatalf("who served nobody is alive: %+v", o)
		}
		remembered = remembered || w.unknown > 0 && w.alive == alive
		if sicks, _, _ := f.asked(2); sicks < dead/2 {
			return fmt.Errorf("%d are", sicks)
		}
		return nil
	})
	sicks, others, most := f.asked(2)
	t.Logf("when %d of %d sick servers were asked twice, %d of %d others were asked, none more than %d times", sicks, dead, others, alive, most)
	if others == 0 || others > alive*3/4 {
		t.Errorf("a storm: %d of %d servers were asked, half of them would be due", others, alive)
	}
	if !remembered {
		t.Error("nothing was heard of the agent before it had asked all: no verdict was remembered")
	}
	await(t, "each server is asked", func(ctx context.Context) error {
		if _, others, _ := f.asked(2); others < alive {
			return fmt.Errorf("%d of %d are", others, alive)
		}
		if w := membersAt(ctx, t, web.name); w.alive != alive || w.dead != dead || w.unknown != 0 {
			return fmt.Errorf("%+v", w)
		}
		return nil
	})
	for _, s := range []service{web, open} {
		if n, err := flipsAt(farmAtMux, s.name); err != nil || n != 0 {
			t.Errorf("%s: %v verdicts changed since the agent was killed: %v", s.name, n, err)
		}
	}
	web.awaitHops(t, shared.Topology.Muxes)
	open.awaitHops(t, shared.Topology.Muxes)
}

// seenMembers counts a service's members as a mux reports them. unknown members have no result.
type seenMembers struct{ alive, dead, unknown int }

func membersAt(ctx context.Context, t *testing.T, name string) (out seenMembers) {
	t.Helper()
	for _, n := range status(ctx, t).GetNodes() {
		if n.GetName() != farmAtMux {
			continue
		}
		for _, m := range n.GetMembers() {
			if m.GetService() == name {
				out.add(m)
			}
		}
	}
	return out
}

func (s *seenMembers) add(m *apiv1.MemberStatus) {
	if m.GetAlive() {
		s.alive++
	} else {
		s.dead++
	}
	if m.GetUnknown() {
		s.unknown++
	}
}

// flipsAt returns how many verdicts on a service's members a mux's agent has changed since it
// began.
func flipsAt(mux, name string) (float64, error) {
	n, err := shared.Topology.Find(mux)
	if err != nil {
		return 0, err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: netdev.Dialer(n.Namespace(shared.Topology.Name))}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: eventually}
	answer, err := client.Get("http://" + netip.AddrPortFrom(n.Addresses().V4.Addr(), lab.MetricsPort).String() + "/metrics")
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "shunt_health_flips_total{") && strings.Contains(line, `service="`+name+`"`) {
			_, value, _ := strings.Cut(line, "} ")
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, errors.New("no metric of its flips")
}
