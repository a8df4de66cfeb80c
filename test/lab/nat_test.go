package lab_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// stranger is a server that has nothing of Shunt: a machine of its own at the router, with nginx and the lab's server.
type stranger struct {
	name   string
	v4, v6 netip.Addr
}

// webPort is where strangers have nginx; the lab's server has its own ports.
const webPort = 80

// downloadBytes is the size of the file that nginx of strangers has.
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
		// The kernel takes namespaces down later, and links with them.
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
	// Muxes may still know an earlier machine with these addresses, and call this one alive at once.
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

// translatedService is one of path nat with servers of no agent; without a host, for there is none.
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

// natRoute waits until the router has so many next hops to each address that a mux sends from.
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

// TestTranslated: servers with nothing of Shunt answer clients of VIPs of both families through the muxes: downloads, uploads of many
// connections over both muxes, datagrams, with and without cookies, whatever timestamps servers have; and no kernel calls a timestamp odd.
func TestTranslated(t *testing.T) {
	logsOnFailure(t, shared)
	plain := []stranger{newStranger(t, 1, "1"), newStranger(t, 2, "2"), newStranger(t, 3, "0")}
	services := []service{
		translatedService("nat-flow", 140, "tcp", webPort, "", plain...),
		translatedService("nat-split-r", 141, "tcp", webPort, "  affinity: cookie\n  cookie: {form: split-r}\n", plain...),
		translatedService("nat-split-z", 142, "tcp", webPort, "  affinity: cookie\n  cookie: {form: split-z}\n", plain...),
		translatedService("nat-turns", 143, "tcp", webPort, "  affinity: cookie\n  scheduler: round-robin\n", plain...),
	}
	before := strangeTimestamps(t, plain)
	for _, s := range services {
		s.up(t)
	}
	for mux := 1; mux <= shared.Topology.Muxes; mux++ {
		natRoute(t, mux, 1)
	}
	for _, s := range services {
		for _, target := range s.targets() {
			got := servers(t, target, 30)
			if len(got) != len(plain) {
				t.Errorf("%s at %s: answers are from %v", s.name, target, got)
			}
			// As many connections at once as need both muxes and all servers.
			errs := make(chan error, 8)
			for range cap(errs) {
				go func() { errs <- download(target) }()
			}
			for range cap(errs) {
				if err := <-errs; err != nil {
					t.Errorf("%s at %s: %v", s.name, target, err)
				}
			}
			from, err := get(target, "/who")
			if addr, wrong := netip.ParseAddr(from); err != nil || wrong != nil || !lab.NAT4.Contains(addr) && !lab.NAT6.Contains(addr) {
				t.Errorf("%s at %s: the server has %q for its client: %v", s.name, target, from, err)
			}
		}
	}
	for name, n := range strangeTimestamps(t, plain) {
		if n != before[name] {
			t.Errorf("%s was counted %d times", name, n-before[name])
		}
	}
}

// download checks the file that nginx has, byte by byte.
func download(target string) error {
	check := &patternCheck{}
	n, err := fetch(target, "/file", check)
	if err != nil {
		return fmt.Errorf("download: %d bytes: %w", n, err)
	}
	if n != downloadBytes {
		return fmt.Errorf("download: %d bytes, expected %d", n, downloadBytes)
	}
	return nil
}

// patternCheck takes the bytes of the pattern only.
type patternCheck struct{ at int64 }

func (p *patternCheck) Write(b []byte) (int, error) {
	for i := range b {
		if b[i] != lab.PatternByte(p.at) {
			return i, fmt.Errorf("byte %d is %d, expected %d", p.at, b[i], lab.PatternByte(p.at))
		}
		p.at++
	}
	return len(b), nil
}

// strangeTimestamps are the kernels' counters of segments dropped because of their timestamps, at the client and at servers.
func strangeTimestamps(t *testing.T, plain []stranger) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, name := range []string{"PAWSEstab", "PAWSActive", "TSEcrRejected"} {
		out["client1 "+name] = tcpCounter(t, "client1", name)
		for _, s := range plain {
			out[s.name+" "+name] = tcpCounter(t, s.name, name)
		}
	}
	return out
}

// TestTranslatedSYNCookies: a server that keeps nothing of handshakes (net.ipv4.tcp_syncookies=2) reads window scale and SACK from the first echo, which
// is its own timestamp with the form split-r.
func TestTranslatedSYNCookies(t *testing.T) {
	logsOnFailure(t, shared)
	plain := newStranger(t, 1, "1")
	if err := netdev.SetSysctls(shared.Topology.Name+"-"+plain.name, []netdev.Sysctl{{Key: "net/ipv4/tcp_syncookies", Value: "2"}}); err != nil {
		t.Fatal(err)
	}
	flow := translatedService("nat-syncookies-flow", 153, "tcp", webPort, "", plain)
	split := translatedService("nat-syncookies-r", 154, "tcp", webPort, "  affinity: cookie\n", plain)
	for _, s := range []service{flow, split} {
		s.up(t)
	}
	awaitKeys(t, split.vips(), "steady")
	before := tcpCounter(t, plain.name, "SyncookiesRecv")
	all := askers(t, 1, flow, split)
	if n := tcpCounter(t, plain.name, "SyncookiesRecv") - before; n < uint64(len(all)) {
		t.Errorf("%d of %d handshakes were ended by a SYN cookie", n, len(all))
	}
	var text []byte
	err := netdev.In(shared.Topology.Name+"-"+plain.name, func() (err error) {
		text, err = exec.Command("ss", "-tinoH", "state", "established", "sport", "=", fmt.Sprint(webPort)).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	// Each connection has a line of its options; those of checks, which come from the muxes, may be there too.
	if n := strings.Count(string(text), " ts sack "); n < len(all) || strings.Count(string(text), "wscale:") < len(all) {
		t.Errorf("of %d connections not all have SACK and window scale:\n%s", len(all), text)
	}
	for _, s := range []service{flow, split} {
		for _, target := range s.targets() {
			if err := download(target); err != nil {
				t.Errorf("%s: %v", target, err)
			}
		}
	}
}

// TestTranslatedSilence: a server that was silent for longer than a clock of 16 bits goes round, 65.5 s, is heard at once when it speaks
// again, with timestamps that the mux stamps and without.
func TestTranslatedSilence(t *testing.T) {
	logsOnFailure(t, shared)
	plain := []stranger{newStranger(t, 1, "1"), newStranger(t, 2, "2")}
	services := []service{
		translatedService("nat-silent-flow", 144, "tcp", lab.ServerPort, "", plain...),
		translatedService("nat-silent-r", 145, "tcp", lab.ServerPort, "  affinity: cookie\n  cookie: {form: split-r}\n", plain...),
		translatedService("nat-silent-z", 146, "tcp", lab.ServerPort, "  affinity: cookie\n  cookie: {form: split-z}\n", plain...),
	}
	before := strangeTimestamps(t, plain)
	const silence = 70 * time.Second
	type heard struct {
		who string
		err error
	}
	answers, asked := make(chan heard), 0
	for _, s := range services {
		s.up(t)
		for _, target := range s.targets() {
			for range 2 {
				asked++
				go func() { answers <- heard{s.name + " at " + target, hearAfter(target, silence)} }()
			}
		}
	}
	for range asked {
		if a := <-answers; a.err != nil {
			t.Errorf("%s: %v", a.who, a.err)
		}
	}
	for name, n := range strangeTimestamps(t, plain) {
		if n != before[name] {
			t.Errorf("%s was counted %d times", name, n-before[name])
		}
	}
}

// hearAfter asks a server to say something after a silence, and hears it.
func hearAfter(target string, silence time.Duration) error {
	conn, err := dial("tcp", target)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(silence + eventually)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET /push?after=%s HTTP/1.1\r\nHost: lab\r\n\r\n", silence); err != nil {
		return err
	}
	body := make([]byte, 0, 1<<10)
	for {
		chunk := make([]byte, 1<<10)
		n, err := conn.Read(chunk)
		body = append(body, chunk[:n]...)
		if _, rest, found := strings.Cut(string(body), lab.PushWord+"\n"); found && strings.HasSuffix(rest, "\n") {
			return nil
		}
		if err != nil {
			return fmt.Errorf("heard %q: %w", body, err)
		}
	}
}

// TestTranslatedDatagrams: UDP goes both ways through the muxes, each client's flows to one server.
func TestTranslatedDatagrams(t *testing.T) {
	logsOnFailure(t, shared)
	plain := []stranger{newStranger(t, 1, "1"), newStranger(t, 2, "1")}
	s := translatedService("nat-echo", 147, "udp", lab.EchoPort, "", plain...)
	s.up(t)
	for _, target := range s.targets() {
		for range 10 {
			if err := echoes(target, 20); err != nil {
				t.Errorf("%s: %v", target, err)
			}
		}
	}
}

// echoes sends datagrams over one flow until each came back.
func echoes(target string, n int) error {
	conn, err := dial("udp", target)
	if err != nil {
		return err
	}
	defer conn.Close()
	buf := make([]byte, 2048)
	for i := range n {
		word := fmt.Sprintf("word %d of %s", i, conn.LocalAddr())
		deadline := time.Now().Add(eventually)
		for {
			if time.Now().After(deadline) {
				return fmt.Errorf("%q does not come back", word)
			}
			if _, err := io.WriteString(conn, word); err != nil {
				return err
			}
			if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			got, err := conn.Read(buf)
			var late net.Error
			if errors.As(err, &late) && late.Timeout() {
				continue
			}
			if err != nil {
				return err
			}
			if string(buf[:got]) == word {
				break
			}
		}
	}
	return nil
}

// TestTranslatedPathMTU: where the way to the client takes smaller packets than the server sends, the router's word reaches the server
// as its own: without it nothing large would arrive. The router may tell any mux of the VIP, so the VIP is on one.
func TestTranslatedPathMTU(t *testing.T) {
	logsOnFailure(t, shared)
	plain := newStranger(t, 1, "1")
	s := translatedService("nat-mtu", 148, "tcp", webPort, "", plain)
	s.text = strings.Replace(s.text, "endpoints:", "placement: {replicas: 1}\nendpoints:", 1)
	s.apply(t)
	s.awaitHops(t, 1)
	client := lab.ClientAddresses(1)
	route := func(verb string) {
		for _, a := range []struct{ family, to string }{{"-4", client.V4.Addr().String()}, {"-6", client.V6.Addr().String()}} {
			args := []string{a.family, "route", verb, a.to, "dev", "clients"}
			if verb != "del" {
				args = append(args, "mtu", "1300")
			}
			if err := onRouter(args...); err != nil {
				t.Error(err)
			}
		}
	}
	route("replace")
	t.Cleanup(func() { route("del") })
	for _, target := range s.targets() {
		await(t, "a server of "+target, func(context.Context) error {
			_, err := get(target, "/")
			return err
		})
		if err := download(target); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// asker is a connection of a client that asks for its server's name, over and over.
type asker struct {
	target string
	conn   net.Conn
	from   *bufio.Reader
	server string
}

// askers are so many connections to each VIP of services, each with its first answer.
func askers(t *testing.T, each int, of ...service) (all []*asker) {
	t.Helper()
	for _, s := range of {
		for _, target := range s.targets() {
			for range each {
				conn, err := dial("tcp", target)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				a := &asker{target: target, conn: conn, from: bufio.NewReader(conn)}
				if a.server, err = a.ask(); err != nil {
					t.Fatal(err)
				}
				all = append(all, a)
			}
		}
	}
	return all
}

// ask asks once more.
func (a *asker) ask() (string, error) {
	if err := a.conn.SetDeadline(time.Now().Add(eventually)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(a.conn, "GET / HTTP/1.1\r\nHost: lab\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(a.from, nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// TestTranslatedConnectionsStay: connections outlive restarts of the muxes' agents, and other keys of cookies. Those of a mux that leaves are reset by
// their servers, at once; the others go on.
func TestTranslatedConnectionsStay(t *testing.T) {
	logsOnFailure(t, shared)
	plain := []stranger{newStranger(t, 1, "1"), newStranger(t, 2, "2")}
	flow := translatedService("nat-stay-flow", 150, "tcp", webPort, "", plain...)
	split := translatedService("nat-stay-r", 151, "tcp", webPort, "  affinity: cookie\n", plain...)
	zero := translatedService("nat-stay-z", 152, "tcp", webPort, "  affinity: cookie\n  cookie: {form: split-z}\n", plain...)
	for _, s := range []service{flow, split, zero} {
		s.up(t)
	}
	awaitKeys(t, append(split.vips(), zero.vips()...), "steady")
	all := askers(t, 8, flow, split, zero)
	goOn := func(after string) {
		t.Helper()
		for _, a := range all {
			if name, err := a.ask(); err != nil || name != a.server {
				t.Errorf("after %s, %s: answer %q, expected %q: %v", after, a.target, name, a.server, err)
			}
		}
	}
	for mux := 1; mux <= shared.Topology.Muxes; mux++ {
		if err := shared.RestartAgent(t.Context(), fmt.Sprintf("mux%d", mux)); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []service{flow, split, zero} {
		s.awaitAlive(t, len(plain))
	}
	goOn("restarts of agents")
	for _, vip := range append(split.vips(), zero.vips()...) {
		mustShunt(t, "rotate", "keys", vip.String())
	}
	awaitKeys(t, append(split.vips(), zero.vips()...), "rest")
	goOn("other keys")
	all = append(all, askers(t, 4, split, zero)...)
	goOn("connections with the other keys")

	mustShunt(t, "drain", "node", "mux2")
	t.Cleanup(func() {
		mustShunt(t, "undrain", "node", "mux2")
		natRoute(t, 2, 1)
		flow.awaitHops(t, shared.Topology.Muxes)
	})
	natRoute(t, 2, 0)
	for _, s := range []service{flow, split, zero} {
		s.awaitHops(t, 1)
	}
	stay, reset := 0, 0
	for _, a := range all {
		switch name, err := a.ask(); {
		case err == nil && name == a.server:
			stay++
		case errors.Is(err, unix.ECONNRESET):
			reset++
		default:
			t.Errorf("%s: answer %q, expected %q or a reset: %v", a.target, name, a.server, err)
		}
	}
	if stay == 0 || reset == 0 {
		t.Errorf("%d connections went on and %d were reset: both are expected of %d", stay, reset, len(all))
	}
}

// TestTranslatingMuxLeaves: what a mux sends from is announced by it alone, and no more once it is drained; clients are served on.
func TestTranslatingMuxLeaves(t *testing.T) {
	logsOnFailure(t, shared)
	plain := newStranger(t, 1, "1")
	s := translatedService("nat-leave", 149, "tcp", webPort, "", plain)
	s.up(t)
	mustShunt(t, "drain", "node", "mux2")
	t.Cleanup(func() {
		mustShunt(t, "undrain", "node", "mux2")
		natRoute(t, 2, 1)
		s.awaitHops(t, shared.Topology.Muxes)
	})
	natRoute(t, 2, 0)
	natRoute(t, 1, 1)
	s.awaitHops(t, 1)
	for _, target := range s.targets() {
		if got := servers(t, target, 5); got[plain.name] != 5 {
			t.Errorf("%s: answers are from %v", target, got)
		}
	}
}
