package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// newWeb serves HTTP in client1 and returns its address. A response is the address of the
// requester.
func newWeb(t *testing.T) netip.AddrPort {
	t.Helper()
	var at netip.AddrPort
	err := netdev.In(client1(), func() error {
		l, err := net.Listen("tcp4", netip.AddrPortFrom(lab.ClientAddresses(1).V4.Addr(), 0).String())
		if err != nil {
			return err
		}
		at = l.Addr().(*net.TCPAddr).AddrPort()
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) })}
		t.Cleanup(func() { s.Close() })
		go s.Serve(l) //nolint:errcheck // it ends with the test
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// curl sends a request from a server, and returns the source address that the other end received.
func curl(ctx context.Context, vm string, to netip.AddrPort) (netip.AddrPort, error) {
	out, err := exec.CommandContext(ctx, "nsenter", "--net=/run/netns/"+onVM(vm), "curl", "-sS", "--max-time", "10", "http://"+to.String()+"/").CombinedOutput()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("curl from %s: %w: %s", vm, err, out)
	}
	return netip.ParseAddrPort(strings.TrimSpace(string(out)))
}

// outboundService returns a service without endpoints, for connections that servers open.
func outboundService(name string, number int, vms ...string) service {
	s := service{name: name, number: number, only4: true, protocol: "tcp", port: 80}
	var servers []string
	for _, vm := range vms {
		n, err := shared.Topology.Find(vm)
		if err != nil {
			panic(err)
		}
		servers = append(servers, fmt.Sprintf("{dip: %q, host: %q}", n.Addresses().V4.Addr(), lab.HostAddresses(n.Index).V4.Addr()))
	}
	s.text = fmt.Sprintf("kind: Service\nname: %s\nvip: %q\nsnat: [%s]\n", name, s.vips()[0], strings.Join(servers, ", "))
	return s
}

// TestSNATWithoutEndpoints checks that servers reach the outside through the VIP of a service
// without endpoints, with curl and with connections that last while agents restart and endpoints
// are added and removed. The VIP serves clients nothing but replies to pings.
func TestSNATWithoutEndpoints(t *testing.T) {
	logsOnFailure(t, shared)
	o, web := newOutside(t), newWeb(t)
	vms := []string{"host1-vm1", "host3-vm2"}
	s := outboundService("snat-alone", 145, vms...)
	s.apply(t)
	vip := s.vips()[0]
	asks := func(when string) {
		t.Helper()
		for _, vm := range vms {
			await(t, when+": an answer to curl", func(ctx context.Context) error {
				from, err := curl(ctx, vm, web)
				if err == nil && from.Addr() != vip {
					err = fmt.Errorf("%s asks from %s, want %s", vm, from, vip)
				}
				return err
			})
		}
	}
	asks("at first")
	awaitRoutes(t, vip, shared.Topology.Muxes)
	conns := o.dialOut(t, vms, 30)
	o.askByUDP(t, vms[0])
	if from := pingFrom(t, vms[1], 4243); from != vip {
		t.Errorf("a ping came from %s, want %s", from, vip)
	}
	held, err := leases(t.Context(), s.name)
	if err != nil {
		t.Fatal(err)
	}
	if len(held) != len(vms) {
		t.Fatalf("leases of %v", held)
	}
	for dip, ports := range held {
		knowsWhosePort(t, vip, ports[0], dip)
	}
	before := nobodys(t)
	if _, err := lookAt(netip.AddrPortFrom(vip, 80)); err == nil {
		t.Error("somebody answers client1 at port 80 of the VIP")
	}
	await(t, "packets to ports of nobody are counted", func(context.Context) error {
		if nobodys(t) <= before {
			return errors.New("none is")
		}
		return nil
	})

	for _, node := range []string{"mux1", "host1"} {
		if err := shared.KillAgent(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		if err := shared.StartAgent(node); err != nil {
			t.Fatal(err)
		}
		awaitRoutes(t, vip, shared.Topology.Muxes)
		conns.speak(t, "after a restart of the agent of "+node)
		asks("after a restart of the agent of " + node)
	}
	with := snatted(s.name, s.number, "ipip", vms)
	with.only4 = true
	with.apply(t)
	with.awaitAlive(t, len(vms))
	conns.speak(t, "when there is an endpoint")
	if err := shared.FirstAnswer(t.Context(), "client1", with.targets()[0]); err != nil {
		t.Errorf("when there is an endpoint: %v", err)
	}
	s.apply(t)
	conns.speak(t, "when the endpoint is gone")
	asks("when the endpoint is gone")
	awaitRoutes(t, vip, shared.Topology.Muxes)
}

// lookAt opens a connection from client1 with a short timeout.
func lookAt(to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventually/60)
	defer cancel()
	return netdev.Dialer(client1())(ctx, "tcp4", to.String())
}

// nobodys returns how many packets muxes dropped because no server has leased their port.
func nobodys(t *testing.T) (n uint64) {
	t.Helper()
	for i := range shared.Topology.Muxes {
		n += reasons(t.Context(), t, fmt.Sprintf("mux%d", i+1))["snat_nobody"]
	}
	return n
}
