package lab_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// owners are unmodified web servers, nginx, as processes of hosts, which own the VIP. They share
// the uploaded files.
type owners struct {
	service
	dir   string
	hosts []string
}

// ownersPort is the port of all of them. The lab's own servers have others.
const ownersPort = 8088

// newOwners starts a server on every host, and adds the VIPs to the hosts.
func newOwners(t *testing.T, name string, number int, more string, hosts ...string) *owners {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatalf("%v: make setup installs it", err)
	}
	f := &owners{dir: t.TempDir(), hosts: hosts}
	f.service = service{
		name: name, number: number, protocol: "tcp", port: ownersPort, dipPort: ownersPort, rewrite: "none", backends: hosts, entry: f.line,
		more:   "  affinity: cookie\n  cookie: {form: co}\n" + more,
		health: fmt.Sprintf("{http: {path: /healthz}, port: %d, interval: 200ms, timeout: 200ms, rise: 2, fall: 8}", ownersPort),
	}
	// The files that its workers write belong to their user.
	if err := errors.Join(os.Chmod(f.dir, 0o777), os.Mkdir(filepath.Join(f.dir, "up"), 0o777), os.Mkdir(filepath.Join(f.dir, "down"), 0o755)); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(f.dir, "down", "pattern"))
	if err == nil {
		_, err = io.CopyN(file, &patternReader{}, ownersFile)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	for _, host := range hosts {
		own(t, host, f.vips())
		f.start(t, program, host)
	}
	return f
}

// ownersFile is the length of a download, ownersPace the bytes that a server sends per second.
const ownersFile, ownersPace = 2 << 20, 512 << 10

// start runs the server of a host until the test ends.
func (f *owners) start(t *testing.T, program, host string) {
	t.Helper()
	config, log := filepath.Join(f.dir, host+".conf"), filepath.Join(f.dir, host+".log")
	text := fmt.Sprintf(`user root;
daemon off;
worker_processes 2;
pid %[1]s/%[2]s.pid;
error_log %[3]s;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/%[2]s.body;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  server {
    listen %[4]d;
    listen [::]:%[4]d;
    location = / { return 200 "%[2]s\n"; }
    location = /healthz { return 200 "ok\n"; }
    location /down/ { root %[1]s; limit_rate %[5]d; }
    location /up/ { root %[1]s; dav_methods PUT; client_max_body_size 0; }
  }
}
`, f.dir, host, log, ownersPort, ownersPace)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := shared.Command(program, "-p", f.dir, "-e", log, "-c", config)
	if err := shared.StartOn(host, cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // ends its workers too
		_ = cmd.Wait()
		if text, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("--- nginx of %s\n%s", host, text)
		}
	})
	await(t, "nginx of "+host, func(ctx context.Context) error {
		conn, err := netdev.Dialer(inNode(host))(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", ownersPort))
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// line writes a backend of each family that is a process of the host.
func (f *owners) line(host lab.Node) string {
	at := host.Addresses()
	return fmt.Sprintf("  - {dip: %q, port: %d, host: %q}\n  - {dip: %q, port: %d, host: %q}\n",
		at.V4.Addr(), ownersPort, at.V4.Addr(), at.V6.Addr(), ownersPort, at.V6.Addr())
}

// draining is line with one host drained.
func (f *owners) draining(drained string) func(lab.Node) string {
	return func(host lab.Node) string {
		if host.Name == drained {
			return strings.ReplaceAll(f.line(host), "}", ", drain: true}")
		}
		return f.line(host)
	}
}

// transfers are downloads and uploads, each over a new connection, one after the other until they
// are ended.
type transfers struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	whole  map[string]int
	broken []string
}

// transfer begins `each` of either kind at each target.
func (f *owners) transfer(each int) *transfers {
	k := &transfers{stop: make(chan struct{}), whole: map[string]int{}}
	for i := range each * len(f.targets()) {
		target := f.targets()[i%len(f.targets())]
		k.again("downloads from "+target, func(int) error { return f.download(target) })
		k.again("uploads to "+target, func(n int) error { return f.upload(target, fmt.Sprintf("%d-%d", i, n)) })
	}
	return k
}

func (k *transfers) again(what string, once func(n int) error) {
	k.wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-k.stop:
				return
			default:
			}
			err := once(n)
			k.mu.Lock()
			k.whole[what]++
			if err != nil {
				k.broken = append(k.broken, fmt.Sprintf("%s: %v", what, err))
			}
			k.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
}

// end waits for transfers in progress, and fails the test for each that broke.
func (k *transfers) end(t *testing.T) {
	t.Helper()
	close(k.stop)
	k.wg.Wait()
	t.Logf("whole transfers: %v", k.whole)
	for _, b := range k.broken {
		t.Errorf("broke: %s", b)
	}
}

func (f *owners) download(target string) error {
	check := &patternChecker{}
	n, err := fetch(target, "/down/pattern", check)
	if err == nil && (n != ownersFile || check.bad) {
		err = fmt.Errorf("%d bytes of %d, wrong %v at %d", n, ownersFile, check.bad, check.wrong)
	}
	return err
}

// upload takes as long as a download, and checks that the server wrote the data that was sent.
func (f *owners) upload(target, name string) error {
	body, to := io.Pipe()
	said := sha256.New()
	go func() {
		tick := time.NewTicker(time.Second / 16)
		defer tick.Stop()
		from := io.LimitReader(&patternReader{}, ownersFile)
		for {
			n, err := io.CopyN(io.MultiWriter(said, to), from, ownersPace/16)
			if err != nil || n == 0 {
				to.Close()
				return
			}
			<-tick.C
		}
	}()
	defer body.Close()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: netdev.Dialer(client1())}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequest(http.MethodPut, "http://"+target+"/up/"+name, body)
	if err != nil {
		return err
	}
	request.ContentLength = ownersFile
	answer, err := (&http.Client{Transport: transport, Timeout: 2 * eventually}).Do(request)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		return errors.New(answer.Status)
	}
	path := filepath.Join(f.dir, "up", name)
	wrote, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(wrote); !slices.Equal(sum[:], said.Sum(nil)) {
		return fmt.Errorf("%s: the server wrote %d other bytes", path, len(wrote))
	}
	return os.Remove(path)
}

// countOf returns the sum of a reason over nodes with a role.
func countOf(ctx context.Context, t *testing.T, role, reason string) (sum uint64) {
	t.Helper()
	for _, n := range status(ctx, t).GetNodes() {
		if n.GetRole() == role {
			sum += reasons(ctx, t, n.GetName())[reason]
		}
	}
	return sum
}

// strangeStamps returns the kernels' counters of segments dropped because of their timestamps, of
// client1 and hosts.
func strangeStamps(t *testing.T, hosts []string) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, node := range append([]string{"client1"}, hosts...) {
		for _, name := range []string{"PAWSEstab", "PAWSActive", "TSEcrRejected"} {
			out[node+" "+name] = tcpCounter(t, node, name)
		}
	}
	return out
}

// Servers own the VIP and their own clocks carry the cookie. Connections, downloads and uploads
// survive while muxes are lost and return with empty flow tables, a server drains, keys are rotated
// and agents of hosts are killed. No mux receives an invalid cookie, and no kernel drops a segment
// because of its timestamp.
func TestServersClocksCarryCookies(t *testing.T) {
	logsOnFailure(t, shared)
	f := newOwners(t, "clocks", 181, "  scheduler: round-robin\n", "host1", "host2", "host3")
	f.up(t)
	awaitKeys(t, f.vips(), "steady")
	odd, invalid := strangeStamps(t, f.hosts), countOf(t.Context(), t, "mux", "cookie_invalid")
	accepted := countOf(t.Context(), t, "host", "co_accepted")
	for _, target := range f.targets() {
		if got := servers(t, target, 12); len(got) != len(f.hosts) {
			t.Errorf("%s: %v answered", target, got)
		}
	}
	kept, moving := keep(t, f.targets(), 12), f.transfer(2)
	lose := func(mux string) {
		if err := shared.LoseMux(t.Context(), mux); err != nil {
			t.Fatal(err)
		}
		f.awaitHops(t, shared.Topology.Muxes-1)
		if err := shared.ReviveMux(mux); err != nil {
			t.Fatal(err)
		}
		if err := shared.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.awaitHops(t, shared.Topology.Muxes)
		f.awaitAlive(t, len(f.backends))
		t.Logf("%s is back", mux)
	}
	lose("mux1")
	f.entry = f.draining("host2")
	f.apply(t)
	lose("mux2")
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, vip := range f.vips() {
		if _, err := client.RotateKeys(t.Context(), connect.NewRequest(&apiv1.RotateKeysRequest{Scopes: []string{vip.String()}, Purpose: "cookie"})); err != nil {
			t.Fatal(err)
		}
	}
	awaitKeys(t, f.vips(), "rest")
	later := keep(t, f.targets(), 12)
	if err := shared.KillAgent(t.Context(), "host1"); err != nil {
		t.Fatal(err)
	}
	for _, target := range f.targets() {
		if got := servers(t, target, 12); len(got) != 2 || got["host2"] != 0 {
			t.Errorf("%s while one drains and an agent is dead: %v answered", target, got)
		}
	}
	if err := shared.RestartAgent(t.Context(), "host1"); err != nil {
		t.Fatal(err)
	}
	f.entry = f.draining("host3")
	f.apply(t)
	lose("mux1")
	kept.end(t)
	later.end(t)
	moving.end(t)
	await(t, "hosts made handshakes", func(ctx context.Context) error {
		if n := countOf(ctx, t, "host", "co_accepted") - accepted; n < 100 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	for _, reason := range []string{"co_bad_echo", "co_refused", "co_no_room", "co_malformed"} {
		if n := countOf(t.Context(), t, "host", reason); n != 0 {
			t.Errorf("hosts count %s %d times", reason, n)
		}
	}
	if n := countOf(t.Context(), t, "mux", "cookie_invalid"); n != invalid {
		t.Errorf("muxes saw %d cookies that are none", n-invalid)
	}
	for what, n := range strangeStamps(t, f.hosts) {
		if n != odd[what] {
			t.Errorf("%s is %d, it was %d", what, n, odd[what])
		}
	}
}

// nodeError returns the error that a node reports.
func nodeError(ctx context.Context, t *testing.T, node string) string {
	t.Helper()
	for _, n := range status(ctx, t).GetNodes() {
		if n.GetName() == node {
			return n.GetError()
		}
	}
	return "no such node"
}

// A server whose kernel makes no timestamps serves without cookies, and its host reports it. When
// the kernel makes timestamps again, the server is used again without a new plan.
func TestServersWithoutTimestamps(t *testing.T) {
	logsOnFailure(t, shared)
	set := func(value string) {
		if err := netdev.SetSysctls(inNode("host1"), []netdev.Sysctl{{Key: "net/ipv4/tcp_timestamps", Value: value}}); err != nil {
			t.Fatal(err)
		}
	}
	f := newOwners(t, "noclocks", 182, "", "host1")
	f.up(t)
	awaitKeys(t, f.vips(), "steady")
	ask := func() {
		t.Helper()
		for _, target := range f.targets() {
			if got := servers(t, target, 10); got["host1"] != 10 {
				t.Errorf("%s: %v answered", target, got)
			}
		}
	}
	ask()
	before := keep(t, f.targets(), 4)
	set("0")
	t.Cleanup(func() { set("1") })
	await(t, "host1 to say that it makes no timestamps", func(ctx context.Context) error {
		if text := nodeError(ctx, t, "host1"); !strings.Contains(text, "net.ipv4.tcp_timestamps is 0") {
			return fmt.Errorf("it says %q", text)
		}
		return nil
	})
	odd, invalid, absent := strangeStamps(t, f.hosts), countOf(t.Context(), t, "mux", "cookie_invalid"), countOf(t.Context(), t, "mux", "cookie_absent")
	moving, without := f.transfer(1), keep(t, f.targets(), 4)
	ask()
	if err := shared.LoseMux(t.Context(), "mux1"); err != nil {
		t.Fatal(err)
	}
	f.awaitHops(t, shared.Topology.Muxes-1)
	ask()
	if err := shared.ReviveMux("mux1"); err != nil {
		t.Fatal(err)
	}
	f.awaitHops(t, shared.Topology.Muxes)
	f.awaitAlive(t, 1)
	moving.end(t)
	without.end(t)
	before.end(t)
	await(t, "muxes count packets without cookies", func(ctx context.Context) error {
		if n := countOf(ctx, t, "mux", "cookie_absent"); n <= absent {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	if n := countOf(t.Context(), t, "mux", "cookie_invalid"); n != invalid {
		t.Errorf("muxes saw %d cookies that are none", n-invalid)
	}
	for what, n := range strangeStamps(t, f.hosts) {
		if n != odd[what] {
			t.Errorf("%s is %d, it was %d", what, n, odd[what])
		}
	}
	set("1")
	accepted := uint64(0)
	await(t, "host1 to make handshakes again", func(ctx context.Context) error {
		if text := nodeError(ctx, t, "host1"); text != "" {
			return errors.New(text)
		}
		accepted = reasons(ctx, t, "host1")["co_accepted"]
		return nil
	})
	ask()
	await(t, "handshakes of host1", func(ctx context.Context) error {
		if n := reasons(ctx, t, "host1")["co_accepted"]; n <= accepted {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}
