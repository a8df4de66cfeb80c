package lab_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// dipOf returns the IPv4 address of a VM.
func dipOf(t *testing.T, vm string) netip.Addr {
	t.Helper()
	node, err := shared.Topology.Find(vm)
	if err != nil {
		t.Fatal(err)
	}
	return node.Addresses().V4.Addr()
}

// loadKnown returns the load of a member of a service at the manager, and at each mux.
func loadKnown(ctx context.Context, service string, dip netip.Addr) (manager *apiv1.MemberLoad, muxes map[string]*apiv1.MemberLoad, err error) {
	client, err := shared.Client()
	if err != nil {
		return nil, nil, err
	}
	status, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{LoadOf: service}))
	if err != nil {
		return nil, nil, err
	}
	for _, l := range status.Msg.GetLoad() {
		if l.GetDip() == dip.String() {
			manager = l.GetLoad()
		}
	}
	health, err := client.HealthOf(ctx, connect.NewRequest(&apiv1.HealthOfRequest{Dip: dip.String(), Service: service}))
	if err != nil {
		return nil, nil, err
	}
	muxes = map[string]*apiv1.MemberLoad{}
	for _, b := range health.Msg.GetBackends() {
		for _, n := range b.GetNodes() {
			if n.GetRole() == "mux" {
				muxes[n.GetNode()] = n.GetLoad()
			}
		}
	}
	return manager, muxes, nil
}

// awaitLoad waits until the manager and every mux have that load of a member.
func awaitLoad(t *testing.T, service, vm string, connections uint32, given float32) {
	t.Helper()
	dip := dipOf(t, vm)
	is := func(l *apiv1.MemberLoad) bool {
		return l != nil && l.Connections != nil && l.GetConnections() == connections && l.Cpu != nil && l.Given != nil && l.GetGiven() == given
	}
	await(t, fmt.Sprintf("%s of %s has %d connections and says %v", vm, service, connections, given), func(ctx context.Context) error {
		manager, muxes, err := loadKnown(ctx, service, dip)
		if err != nil {
			return err
		}
		if !is(manager) {
			return fmt.Errorf("the manager knows %v", manager)
		}
		if len(muxes) != shared.Topology.Muxes {
			return fmt.Errorf("muxes are %v", muxes)
		}
		for name, l := range muxes {
			if !is(l) {
				return fmt.Errorf("%s knows %v", name, l)
			}
		}
		return nil
	})
}

// The loads that applications report, by the socket of their host and by HTTP, and the connections
// that hosts count, reach the manager and every mux, and are shown.
func TestLoadsReachMuxes(t *testing.T) {
	logsOnFailure(t, shared)
	asked := service{
		name: "loadasked", number: 80, protocol: "tcp", port: 80, dipPort: 8080, only4: true, backends: []string{"host1-vm1", "host2-vm1"},
		more: "  load: {http: {path: /load}, stale: 30s}\n",
	}
	said := service{
		name: "loadsaid", number: 81, protocol: "tcp", port: 7, dipPort: 7, only4: true, backends: []string{"host3-vm1"}, more: "  load: {stale: 10m}\n",
	}
	asked.up(t)
	said.up(t)
	for vm, load := range map[string]string{"host1-vm1": "0.75", "host2-vm1": "3e2\n"} {
		node, err := shared.Topology.Find(vm)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: netdev.Dialer(node.Namespace(shared.Topology.Name))}, Timeout: eventually}
		target := netip.AddrPortFrom(dipOf(t, vm), lab.ServerPort).String()
		put := func(body string) {
			t.Helper()
			request, err := http.NewRequestWithContext(context.Background(), http.MethodPut, "http://"+target+"/load", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
		}
		put(load)
		t.Cleanup(func() { put("0\n") })
	}
	awaitLoad(t, "loadasked", "host1-vm1", 0, 0.75)
	awaitLoad(t, "loadasked", "host2-vm1", 0, 300)

	socket, err := net.Dial("unix", filepath.Join(shared.RunDir("host3"), "load.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := socket.SetDeadline(time.Now().Add(eventually)); err != nil {
		t.Fatal(err)
	}
	dip := dipOf(t, "host3-vm1")
	for line, want := range map[string]string{
		fmt.Sprintf("%s:7 2.5\n", dip):               "ok\n",
		fmt.Sprintf("%s:9999 2.5\n", dip):            fmt.Sprintf("error: server: %s:9999: must be a backend on this host whose load is not asked by HTTP\n", dip),
		dipOf(t, "host1-vm1").String() + ":8080 1\n": fmt.Sprintf("error: server: %s:8080: must be a backend on this host whose load is not asked by HTTP\n", dipOf(t, "host1-vm1")),
	} {
		got := make([]byte, len(want))
		if _, err := io.WriteString(socket, line); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(socket, got); err != nil || string(got) != want {
			t.Fatalf("%q: answered %q (%v), want %q", line, got, err, want)
		}
	}
	awaitLoad(t, "loadsaid", "host3-vm1", 0, 2.5)

	const connections = 7
	var open []net.Conn
	for range connections {
		conn, err := dial("tcp", said.targets()[0])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	awaitLoad(t, "loadsaid", "host3-vm1", connections, 2.5)
	out, err := exec.Command(program, "get", "load", "loadsaid", "--lab", shared.Topology.Name).CombinedOutput()
	head, row, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	shows := func(column, value string) bool {
		i, fields := slices.Index(strings.Fields(head), column), strings.Fields(row)
		return i >= 0 && i < len(fields) && fields[i] == value
	}
	if err != nil || !shows("SERVICE", "loadsaid") || !shows("CONNECTIONS", fmt.Sprint(connections)) || !shows("LOAD", "2.5") || !shows("SHARE", "100.0%") {
		t.Errorf("shunt get load: %v\n%s", err, out)
	}
	out, err = exec.Command(program, "describe", "backend", dip.String(), "loadsaid", "--lab", shared.Topology.Name).CombinedOutput()
	for i := range shared.Topology.Muxes {
		if err != nil || strings.Count(string(out), fmt.Sprintf("mux%d", i+1)) < 2 {
			t.Errorf("shunt describe backend: %v\n%s", err, out)
		}
	}
	for _, conn := range open {
		conn.Close()
	}
	awaitLoad(t, "loadsaid", "host3-vm1", 0, 2.5)
}

// serverMeter returns a server's meter at the manager, and how many packets it got as a member of a
// service.
func serverMeter(ctx context.Context, t *testing.T, service string, dip netip.Addr) (meter *apiv1.ServerStatus, packets uint64) {
	t.Helper()
	for _, n := range status(ctx, t).GetNodes() {
		for _, s := range n.GetServers() {
			if s.GetDip() == dip.String() {
				meter = s
			}
		}
		for _, m := range n.GetMembers() {
			if n.GetRole() == "host" && m.GetService() == service && m.GetDip() == dip.String() {
				packets += m.GetPackets()
			}
		}
	}
	return meter, packets
}

// The packets and bytes that a server receives and sends through a VIP are counted exactly, for
// both families.
func TestServersAreMetered(t *testing.T) {
	logsOnFailure(t, shared)
	echo := service{name: "metered", number: 82, protocol: "udp", port: 7, dipPort: 7, backends: []string{"host2-vm2"}}
	echo.up(t)
	vm, err := shared.Topology.Find("host2-vm2")
	if err != nil {
		t.Fatal(err)
	}
	for i, target := range echo.targets() {
		dip, headers := vm.Addresses().V4.Addr(), uint64(28)
		if i == 1 {
			dip, headers = vm.Addresses().V6.Addr(), 48
		}
		echoOnce(t, "udp", target, "the first")
		// A report with this packet includes all earlier ones.
		var before *apiv1.ServerStatus
		await(t, "the meter", func(ctx context.Context) error {
			var packets uint64
			if before, packets = serverMeter(ctx, t, echo.name, dip); before == nil || packets == 0 {
				return fmt.Errorf("meter %v, %d packets", before, packets)
			}
			return nil
		})
		conn, err := dial("udp", target)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		want := proto.CloneOf(before)
		want.FlowsIn++
		for size := 1; size < 1000; size += 37 {
			if _, err := conn.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			if n, err := conn.Read(make([]byte, 2000)); err != nil || n != size {
				t.Fatalf("%s: %d bytes came back as %d: %v", target, size, n, err)
			}
			want.PacketsIn++
			want.BytesIn += uint64(size) + headers
			want.PacketsOut++
			want.BytesOut += uint64(size) + headers
		}
		await(t, "the meter of "+dip.String(), func(ctx context.Context) error {
			if got, _ := serverMeter(ctx, t, echo.name, dip); !proto.Equal(got, want) {
				return fmt.Errorf("is %v, want %v", got, want)
			}
			return nil
		})
	}
}
