package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// stranger is a server without any part of Shunt: a separate machine at the router, with nginx and
// the lab's server.
type stranger struct {
	name   string
	v4, v6 netip.Addr
}

// webPort is the port of strangers' nginx. The lab's server has its own ports.
const webPort = 80

// downloadBytes is the size of the file that strangers' nginx serves.
const downloadBytes = 4 << 20

// newStranger makes the machine, number from 1. timestamps is its net.ipv4.tcp_timestamps.
func newStranger(t *testing.T, number int, timestamps string) stranger {
	t.Helper()
	s := stranger{name: fmt.Sprintf("plain%d", number)}
	subnet4, subnet6 := fmt.Sprintf("10.20.%d.", 200+number), fmt.Sprintf("2001:db8:20:%d::", 200+number)
	s.v4, s.v6 = netip.MustParseAddr(subnet4+"11"), netip.MustParseAddr(subnet6+"11")
	namespace := shared.Topology.Name + "-" + s.name
	if err := netdev.CreateNamespace(namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netdev.DeleteNamespace(namespace); err != nil {
			t.Error(err)
		}
	})
	if err := netdev.SetSysctls(namespace, []netdev.Sysctl{
		{Key: "net/ipv6/conf/all/disable_ipv6", Value: "0"}, {Key: "net/ipv6/conf/default/disable_ipv6", Value: "0"},
		{Key: "net/ipv4/tcp_timestamps", Value: timestamps},
	}); err != nil {
		t.Fatal(err)
	}
	own, err := netdev.OpenNamespace(namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	router, err := netdev.OpenNamespace(shared.Topology.Name + "-router1")
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	if err := netdev.AddVeth(netdev.VethEnd{Namespace: own, Name: lab.Uplink}, netdev.VethEnd{Namespace: router, Name: s.name}, shared.Topology.MTU); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The kernel removes namespaces, and links with them, only later.
		if err := onRouter("link", "del", s.name); err != nil {
			t.Error(err)
		}
	})
	for _, a := range []struct {
		on   *netdev.Namespace
		dev  string
		addr string
	}{
		{own, lab.Uplink, subnet4 + "11/24"}, {own, lab.Uplink, subnet6 + "11/64"},
		{router, s.name, subnet4 + "254/24"}, {router, s.name, subnet6 + "254/64"},
	} {
		if err := a.on.AddAddress(a.dev, netip.MustParsePrefix(a.addr)); err != nil {
			t.Fatal(err)
		}
	}
	if err := own.SetUp("lo", true); err != nil {
		t.Fatal(err)
	}
	for all, via := range map[string]string{"0.0.0.0/0": subnet4 + "254", "::/0": subnet6 + "254"} {
		if err := own.AddRoute(netdev.Route{Destination: netip.MustParsePrefix(all), Via: netip.MustParseAddr(via), Device: lab.Uplink}); err != nil {
			t.Fatal(err)
		}
	}
	s.start(t, program, "lab-server", "--name", s.name)
	s.nginx(t)
	// Muxes may still hold the verdict of an earlier machine with these addresses, and report this
	// one alive immediately.
	for _, addr := range []netip.Addr{s.v4, s.v6} {
		for _, port := range []uint16{webPort, lab.ServerPort} {
			await(t, fmt.Sprintf("%s answers on %s port %d", s.name, addr, port), func(context.Context) error {
				_, err := get(netip.AddrPortFrom(addr, port).String(), "/")
				return err
			})
		}
	}
	return s
}

// onRouter runs the command ip at the router.
func onRouter(args ...string) error {
	return netdev.In(shared.Topology.Name+"-router1", func() error {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
		return nil
	})
}

// start runs a program on the machine until the end of the test.
func (s stranger) start(t *testing.T, argv ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := netdev.In(shared.Topology.Name+"-"+s.name, cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() && said.Len() > 0 {
			t.Logf("%v on %s: %s", argv, s.name, said.String())
		}
	})
}

// nginx serves the machine's name and a file.
func (s stranger) nginx(t *testing.T) {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := make([]byte, downloadBytes)
	for i := range file {
		file[i] = lab.PatternByte(int64(i))
	}
	conf := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr; worker_rlimit_nofile 1024;
events { worker_connections 512; }
http {
	access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
	server {
		listen %[2]d; listen [::]:%[2]d;
		location = / { return 200 %[3]s; }
		location = /who { return 200 $remote_addr; }
		location /file { root %[1]s; }
	}
}
`, dir, webPort, s.name)
	if err := os.WriteFile(filepath.Join(dir, "file"), file, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	s.start(t, path, "-e", "stderr", "-p", dir, "-c", filepath.Join(dir, "conf"))
}

// translatedService returns a service of path nat whose servers have no agent, and so no host.
func translatedService(name string, number int, protocol string, port int, more string, of ...stranger) service {
	v4, v6 := lab.VIPAddresses(number)
	var text strings.Builder
	fmt.Fprintf(&text, "kind: Service\nname: %s\nvip: [%q, %q]\nendpoints:\n- protocol: %s\n  port: %d\n  path: nat\n%s  backends:\n", name, v4, v6, protocol, port, more)
	for _, s := range of {
		fmt.Fprintf(&text, "  - {dip: [%q, %q]}\n", s.v4, s.v6)
	}
	fmt.Fprintf(&text, "  health: {http: {path: /}, port: %d, interval: 200ms, timeout: 200ms, rise: 2, fall: 4}\n", webPort)
	return service{name: name, number: number, protocol: protocol, port: port, backends: make([]string, len(of)), text: text.String()}
}

// natRoute waits until the router has this many next hops to each source address of a mux.
func natRoute(t *testing.T, mux, hops int) {
	t.Helper()
	for _, p := range []netip.Prefix{lab.NATAddresses(mux).V4, lab.NATAddresses(mux).V6} {
		await(t, fmt.Sprintf("%d next hops to %s", hops, p), func(context.Context) error {
			via, err := shared.RoutesAtRouter(p)
			if err == nil && len(via) != hops {
				err = fmt.Errorf("next hops are %v", via)
			}
			return err
		})
	}
}
