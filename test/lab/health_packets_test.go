package lab_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// statusServer responds to every request on a port of a VM with a status that the test sets. 0
// means that it does not listen.
type statusServer struct {
	t         *testing.T
	namespace string
	port      int
	status    atomic.Int32
	listener  net.Listener
}

func newStatusServer(t *testing.T, vm lab.Node, port int) *statusServer {
	t.Helper()
	s := &statusServer{t: t, namespace: vm.Namespace(shared.Topology.Name), port: port}
	t.Cleanup(func() { s.set(0) })
	s.set(http.StatusOK)
	return s
}

func (s *statusServer) set(status int) {
	s.t.Helper()
	s.status.Store(int32(status))
	switch {
	case status == 0 && s.listener != nil:
		s.listener.Close()
		s.listener = nil
	case status != 0 && s.listener == nil:
		err := netdev.In(s.namespace, func() (err error) {
			s.listener, err = net.Listen("tcp", ":"+strconv.Itoa(s.port))
			return err
		})
		if err != nil {
			s.t.Fatal(err)
		}
		go http.Serve(s.listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(s.status.Load())) })) //nolint:errcheck // it ends with the listener
	}
}

// onHost returns a host's report of a member of a service.
func onHost(ctx context.Context, t *testing.T, host, service, dip string) *apiv1.MemberStatus {
	t.Helper()
	for _, n := range status(ctx, t).GetNodes() {
		if n.GetName() != host {
			continue
		}
		for _, m := range n.GetMembers() {
			if m.GetService() == service && m.GetDip() == dip {
				return m
			}
		}
	}
	return nil
}

// awaitWords waits until a host has a verdict on a member with this check result.
func awaitWords(t *testing.T, host, service, dip string, alive bool, words string) {
	t.Helper()
	await(t, fmt.Sprintf("%s says %q of %s", host, words, dip), func(ctx context.Context) error {
		m := onHost(ctx, t, host, service, dip)
		if m.GetAlive() != alive || !strings.Contains(m.GetLastCheck(), words) {
			return fmt.Errorf("it says alive %t: %q", m.GetAlive(), m.GetLastCheck())
		}
		return nil
	})
}

// Hosts detect the health of their servers by packets: a server that refuses, responds 500, is
// silent, or recovers, also behind another device. Connections to the same port meanwhile are not
// affected.
func TestHostsCheckByPackets(t *testing.T) {
	logsOnFailure(t, shared)
	const statusPort = 8090
	web := service{
		name: "hostpackets", number: 94, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"},
		health: "{from: host, interval: 250ms, timeout: 250ms, rise: 2, fall: 4, checks: [{http: {path: /healthz}, port: 8080, engine: packet}, " +
			"{http: {path: /}, port: 8090, engine: packet}]}",
	}
	// Of the same servers and port, but their status does not count.
	calm := service{
		name: "hostcalm", number: 95, protocol: "tcp", port: 80, dipPort: 8080, backends: web.backends,
		health: "{from: host, http: {path: /healthz}, port: 8080, engine: packet, interval: 250ms, timeout: 250ms, rise: 1, fall: 100}",
	}
	forbidChecks(t, web.backends)
	vm, err := shared.Topology.Find("host1-vm1")
	if err != nil {
		t.Fatal(err)
	}
	var states []*statusServer
	for _, name := range web.backends {
		n, err := shared.Topology.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, newStatusServer(t, n, statusPort))
	}
	before := reasons(t.Context(), t, "host1")
	calm.up(t)
	web.up(t)
	dip := vm.Addresses().V4.Addr()
	awaitWords(t, "host1", web.name, dip.String(), true, "status 200")
	// If a busy machine loses a target's first probe, it is probed by sockets for ten minutes. Of
	// four targets some are probed by packets.
	await(t, "packets are answered at host1", func(ctx context.Context) error {
		now := reasons(ctx, t, "host1")
		for _, reason := range []string{"probe_asked", "probe_ended"} {
			if now[reason] <= before[reason] {
				return fmt.Errorf("%s is %d", reason, now[reason])
			}
		}
		return nil
	})

	// Long connections: one from the host to the server itself on the checked port, and a client's
	// through VIPs.
	ctx, end := context.WithCancel(t.Context())
	var lasting sync.WaitGroup
	for _, from := range []struct{ namespace, target string }{
		{lab.Node{Name: "host1"}.Namespace(shared.Topology.Name), netip.AddrPortFrom(dip, 8080).String()},
		{client1(), calm.targets()[0]}, {client1(), calm.targets()[1]},
	} {
		lasting.Go(func() { lastingConnection(ctx, t, from.namespace, from.target) })
	}

	states[0].set(http.StatusInternalServerError)
	web.awaitAlive(t, 2)
	awaitWords(t, "host1", web.name, dip.String(), false, "status 500")
	for _, target := range web.targets() {
		if counts := servers(t, target, 40); len(counts) != 2 || counts["host1-vm1"] > 0 {
			t.Errorf("%s: answers came from %v", target, counts)
		}
	}
	states[0].set(http.StatusOK)
	web.awaitAlive(t, 3)

	states[0].set(0)
	web.awaitAlive(t, 2)
	awaitWords(t, "host1", web.name, dip.String(), false, "connection refused")
	states[0].set(http.StatusOK)
	web.awaitAlive(t, 3)
	end()
	lasting.Wait()

	// A server whose replies to its host are lost is silent.
	host, err := shared.Topology.Find("host1")
	if err != nil {
		t.Fatal(err)
	}
	silence := rule(t, "host1-vm1", "-4", "to", host.Addresses().V4.Addr().String(), "blackhole")
	await(t, "host1 finds it silent", func(ctx context.Context) error {
		if m := onHost(ctx, t, "host1", web.name, dip.String()); m.GetAlive() {
			return fmt.Errorf("it says %q", m.GetLastCheck())
		}
		return nil
	})
	silence()
	web.awaitAlive(t, 3)

	// The same server behind another device, and back.
	back := otherDevice(t, vm, host)
	awaitWords(t, "host1", web.name, dip.String(), true, "status 200")
	for _, target := range web.targets() {
		if counts := servers(t, target, 60); len(counts) != 3 {
			t.Errorf("%s: by another device answers came from %v", target, counts)
		}
	}
	back()
	web.awaitAlive(t, 3)
}

// lastingConnection sends requests over one connection until ctx ends. Each must get a response.
func lastingConnection(ctx context.Context, t *testing.T, namespace, target string) {
	dialing, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	c, err := netdev.Dialer(namespace)(dialing, "tcp", target)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for i := 0; ctx.Err() == nil; i++ {
		err := c.SetDeadline(time.Now().Add(eventually))
		if err == nil {
			_, err = fmt.Fprintf(c, "GET /bytes/100000 HTTP/1.1\r\nHost: %s\r\n\r\n", target)
		}
		var answer *http.Response
		if err == nil {
			answer, err = http.ReadResponse(r, nil)
		}
		var n int64
		if err == nil {
			n, err = io.Copy(io.Discard, answer.Body)
		}
		if err != nil || n != 100000 || answer.StatusCode != http.StatusOK {
			t.Errorf("%s: answer %d from %s: %d bytes: %v", target, i, c.LocalAddr(), n, err)
			return
		}
	}
}

// otherDevice gives a VM a second link to its host, by which the host reaches its IPv4 address
// until the returned function is called or the test ends.
func otherDevice(t *testing.T, vm, host lab.Node) (back func()) {
	t.Helper()
	const device = "other0"
	namespaces := map[string]*netdev.Namespace{}
	for _, n := range []lab.Node{vm, host} {
		ns, err := netdev.OpenNamespace(n.Namespace(shared.Topology.Name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ns.Close)
		namespaces[n.Name] = ns
	}
	dip, gateway := vm.Addresses().V4.Addr(), host.Addresses().V4.Addr()
	own, of := fmt.Sprintf("vm%d", vm.VM), lab.Uplink
	run := func(n lab.Node, argv ...string) {
		t.Helper()
		runIP(t, n.Namespace(shared.Topology.Name), argv...)
	}
	err := netdev.AddVeth(netdev.VethEnd{Namespace: namespaces[host.Name], Name: device}, netdev.VethEnd{Namespace: namespaces[vm.Name], Name: device}, shared.Topology.MTU)
	if err != nil {
		t.Fatal(err)
	}
	there := true
	back = func() {
		if there {
			there = false
			run(host, "route", "replace", dip.String(), "dev", own)
			run(vm, "route", "replace", "default", "via", gateway.String(), "dev", of, "onlink")
			run(host, "link", "delete", device)
		}
	}
	t.Cleanup(back)
	run(vm, "route", "replace", "default", "via", gateway.String(), "dev", device, "onlink")
	run(host, "route", "replace", dip.String(), "dev", device)
	return back
}
