package lab_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// client1 returns the namespace that tests send requests from.
func client1() string { return shared.Topology.Name + "-client1" }

// logsOnFailure prints the packets that agents counted during the test, by node and reason, and the
// end of every node's log when the test fails. Call it first in every test.
func logsOnFailure(t *testing.T, l *lab.Lab) {
	t.Helper()
	before := packetsByReason(l)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		after := packetsByReason(l)
		for _, key := range slices.Sorted(maps.Keys(after)) {
			// A decrease means that the counters were removed meanwhile.
			if n := int64(after[key] - before[key]); n != 0 {
				t.Logf("%s: %d packets", key, n)
			}
		}
		for _, n := range l.Topology.Nodes() {
			if tail := l.Tail(n.Name, 1<<10); tail != "" {
				t.Logf("--- end of %s\n%s", l.LogPath(n.Name), tail)
			}
		}
	})
}

// packetsByReason returns the packets of each node by "NODE REASON", as the manager of l last
// received them. It is empty if the manager does not respond.
func packetsByReason(l *lab.Lab) map[string]uint64 {
	counts := map[string]uint64{}
	client, err := l.Client()
	if err != nil {
		return counts
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	answer, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return counts
	}
	for _, n := range answer.Msg.GetNodes() {
		for _, r := range n.GetReasons() {
			counts[n.GetName()+" "+r.GetReason()] = r.GetPackets()
		}
	}
	return counts
}

// await polls a condition until it is met, and fails the test on timeout, with the result of the
// last poll that was not canceled. A canceled poll does not meet the condition, whatever it
// returns.
func await(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var missing error
	for {
		err := condition(ctx)
		if err == nil && ctx.Err() == nil {
			return
		}
		if missing == nil || ctx.Err() == nil {
			missing = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, eventually, missing)
		case <-tick.C:
		}
	}
}

// service is a service under test, written as YAML.
type service struct {
	name     string
	number   int // of its VIPs
	protocol string
	as       string // the protocol in the YAML if that differs: quic
	port     int
	ports    string // as in YAML, when it is more than one port; then port is the first
	dipPort  int
	backends []string // VM names
	// entry overrides how a backend is written.
	entry   func(vm lab.Node) string
	only6   bool
	only4   bool
	rewrite string
	encap   string
	// fragments is the endpoint's field.
	fragments string
	health    string
	// more are additional lines of the endpoint, rest of the service.
	more, rest string
	// text is the whole object and replaces all other fields.
	text string
}

// fastHTTP detects a failed server within a second, and tolerates a server that is slow on a busy
// machine.
const fastHTTP = "{http: {path: /healthz}, port: 8080, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}"

func (s service) yaml(t *testing.T) string {
	t.Helper()
	if s.text != "" {
		return s.text
	}
	v4, v6 := lab.VIPAddresses(s.number)
	var vips []string
	if !s.only6 {
		vips = append(vips, fmt.Sprintf("%q", v4))
	}
	if !s.only4 {
		vips = append(vips, fmt.Sprintf("%q", v6))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "kind: Service\nname: %s\nvip: [%s]\nendpoints:\n- protocol: %s\n  port: %s\n", s.name, strings.Join(vips, ", "), cmp.Or(s.as, s.protocol), cmp.Or(s.ports, fmt.Sprint(s.port)))
	if s.rewrite != "" {
		fmt.Fprintf(&b, "  rewrite: %s\n", s.rewrite)
	}
	if s.encap != "" {
		fmt.Fprintf(&b, "  encap: %s\n", s.encap)
	}
	b.WriteString(s.more)
	if s.fragments != "" {
		fmt.Fprintf(&b, "  fragments: %s\n", s.fragments)
	}
	b.WriteString("  backends:\n")
	for _, name := range s.backends {
		vm, err := shared.Topology.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		entry := s.entry
		if entry == nil {
			entry = s.perFamily
		}
		b.WriteString(entry(vm))
	}
	health := s.health
	if health == "" {
		health = fastHTTP
	}
	fmt.Fprintf(&b, "  health: %s\n", health)
	b.WriteString(s.rest)
	return b.String()
}

// perFamily writes a backend of each family behind its host's address of the same family: 4in4 and
// 6in6.
func (s service) perFamily(vm lab.Node) string {
	dips, hosts := vm.Addresses(), lab.HostAddresses(vm.Index)
	var text string
	if !s.only6 {
		text += fmt.Sprintf("  - {dip: %q, port: %d, host: %q}\n", dips.V4.Addr(), s.dipPort, hosts.V4.Addr())
	}
	if !s.only4 {
		text += fmt.Sprintf("  - {dip: %q, port: %d, host: %q}\n", dips.V6.Addr(), s.dipPort, hosts.V6.Addr())
	}
	return text
}

// both writes one backend with a DIP of each family behind its host's IPv4 address: 4in4 and 6in4.
func (s service) both(vm lab.Node) string {
	dips := vm.Addresses()
	return fmt.Sprintf("  - {dip: [%q, %q], port: %d, host: %q}\n", dips.V4.Addr(), dips.V6.Addr(), s.dipPort, lab.HostAddresses(vm.Index).V4.Addr())
}

// apply stores the service at the manager, waits until every node has applied it, and removes it
// after the test.
func (s service) apply(t *testing.T) {
	t.Helper()
	revision, err := shared.Apply(t.Context(), s.yaml(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client, err := shared.Client()
		if err != nil {
			t.Error(err)
			return
		}
		ref := &apiv1.ObjectRef{Kind: "Service", Name: s.name}
		_, err = client.Delete(context.Background(), connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{ref}}))
		if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("delete service %s: %v", s.name, err)
		}
	})
	await(t, fmt.Sprintf("all nodes at revision %d", revision), func(ctx context.Context) error {
		for _, n := range status(ctx, t).GetNodes() {
			if n.GetSyncedRevision() < revision || n.GetError() != "" {
				return fmt.Errorf("%s is at %d: %s", n.GetName(), n.GetSyncedRevision(), n.GetError())
			}
		}
		return nil
	})
}

// up applies the service and waits until the router reaches its VIPs through every mux.
func (s service) up(t *testing.T) {
	t.Helper()
	s.apply(t)
	s.awaitHops(t, shared.Topology.Muxes)
	s.awaitAlive(t, len(s.backends))
}

// vips returns the service's VIPs, IPv4 first.
func (s service) vips() []netip.Addr {
	v4, v6 := lab.VIPAddresses(s.number)
	switch {
	case s.only4:
		return []netip.Addr{v4}
	case s.only6:
		return []netip.Addr{v6}
	}
	return []netip.Addr{v4, v6}
}

// targets returns the VIPs with the port.
func (s service) targets() []string {
	var all []string
	for _, vip := range s.vips() {
		all = append(all, netip.AddrPortFrom(vip, uint16(s.port)).String())
	}
	return all
}

// awaitHops waits until the router has exactly this many next hops to each VIP.
func (s service) awaitHops(t *testing.T, hops int) {
	t.Helper()
	for _, vip := range s.vips() {
		prefix := netip.PrefixFrom(vip, vip.BitLen())
		await(t, fmt.Sprintf("%d next hops to %s", hops, prefix), func(context.Context) error {
			via, err := shared.RoutesAtRouter(prefix)
			if err == nil && len(via) != hops {
				err = fmt.Errorf("next hops are %v", via)
			}
			return err
		})
	}
}

// awaitAlive waits until every mux reports exactly this many members of each VIP alive.
func (s service) awaitAlive(t *testing.T, members int) {
	t.Helper()
	await(t, fmt.Sprintf("%d members of %s alive on every mux", members, s.name), func(ctx context.Context) error {
		for _, n := range status(ctx, t).GetNodes() {
			if n.GetRole() != "mux" || !n.GetConnected() {
				continue
			}
			alive := map[string]int{}
			for _, m := range n.GetMembers() {
				if m.GetAlive() && m.GetPort() == uint32(s.port) && m.GetProtocol() == s.protocol {
					alive[m.GetVip()]++
				}
			}
			for _, vip := range s.vips() {
				if alive[vip.String()] != members {
					return fmt.Errorf("%s sees %d of %s alive", n.GetName(), alive[vip.String()], vip)
				}
			}
		}
		return nil
	})
}

// status requests the status until the manager responds. It is empty only if ctx ended first.
func status(ctx context.Context, t *testing.T) *apiv1.StatusResponse {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	for {
		answer, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
		if err == nil {
			return answer.Msg
		}
		select {
		case <-ctx.Done():
			return &apiv1.StatusResponse{}
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// dial opens a connection from client1.
func dial(network, target string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	conn, err := netdev.Dialer(client1())(ctx, network, target)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(eventually))
}

// get requests a path over a new connection.
func get(target, path string) (string, error) {
	var body bytes.Buffer
	_, err := fetch(target, path, &body)
	return strings.TrimSpace(body.String()), err
}

// fetch copies the body of a response.
func fetch(target, path string, to io.Writer) (int64, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: netdev.Dialer(client1())}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 2 * eventually}
	answer, err := client.Get("http://" + target + path)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return 0, errors.New(answer.Status)
	}
	return io.Copy(to, answer.Body)
}

// servers sends this many requests to a target and counts the responding servers.
func servers(t *testing.T, target string, times int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for range times {
		name, err := get(target, "/")
		if err != nil {
			t.Fatalf("GET http://%s/: %v", target, err)
		}
		counts[name]++
	}
	return counts
}

// reasons returns the counters of a node by name, as the manager last received them.
func reasons(ctx context.Context, t *testing.T, node string) map[string]uint64 {
	t.Helper()
	counts := map[string]uint64{}
	for _, n := range status(ctx, t).GetNodes() {
		if n.GetName() != node {
			continue
		}
		for _, r := range n.GetReasons() {
			counts[r.GetReason()] = r.GetPackets()
		}
	}
	return counts
}
