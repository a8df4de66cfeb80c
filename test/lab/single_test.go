package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// singleBox is a balancer of one machine, mux1 of a lab whose only other part of Shunt is a host
// agent.
type singleBox struct {
	t    *testing.T
	l    *lab.Lab
	dir  string
	file string
	cmd  *exec.Cmd
}

// start runs `shunt run` on mux1. Its output is shown when the test fails.
func (b *singleBox) start() {
	b.t.Helper()
	log, err := os.OpenFile(filepath.Join(b.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	defer log.Close()
	b.cmd = b.l.Command(program, "run", "-f", b.file, "--interface", lab.Uplink, "--name", "mux1", "--listen", b.address(),
		"--data", filepath.Join(b.dir, "manager"), "--state", filepath.Join(b.dir, "mux"), "--run", filepath.Join(b.dir, "run"),
		"--bpffs", "/sys/fs/bpf/"+b.l.Topology.Name+"/mux1")
	b.cmd.Stdout, b.cmd.Stderr = log, log
	if err := b.l.StartOn("mux1", b.cmd); err != nil {
		b.t.Fatal(err)
	}
}

func (b *singleBox) address() string {
	n, err := b.l.Topology.Find("mux1")
	if err != nil {
		b.t.Fatal(err)
	}
	return n.Addresses().V4.Addr().String() + ":8443"
}

// kill ends it with SIGKILL.
func (b *singleBox) kill() {
	b.t.Helper()
	if err := b.cmd.Process.Kill(); err != nil {
		b.t.Fatal(err)
	}
	_ = b.cmd.Wait() // killed
}

// shunt runs a command line of the box's operator, on the box.
func (b *singleBox) shunt(args ...string) (string, error) {
	cmd := b.l.Command(append([]string{program, "--config", filepath.Join(b.dir, "manager", "admin.yaml")}, args...)...)
	var out, warnings bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &warnings
	if err := b.l.StartOn("mux1", cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	if err != nil {
		out.Write(warnings.Bytes())
	}
	return strings.TrimSpace(out.String()), err
}

// write replaces the file by one with these services. The text may be anything.
func (b *singleBox) write(services string) {
	b.t.Helper()
	n, err := b.l.Topology.Find("mux1")
	if err != nil {
		b.t.Fatal(err)
	}
	text := fmt.Sprintf(`kind: Network
name: lab
vips: [%s, %q]
underlay: [10.10.0.0/16, 10.20.0.0/16, "2001:db8:10::/48", "2001:db8:20::/48"]
---
kind: Node
name: host1
role: host
address: [%s]
---
kind: Node
name: mux1
role: mux
address: [%s]
bgp:
  asn: %d
  peers: [{address: 10.10.0.1, asn: %d, passwordFile: %s, bfd: {}}]
`, lab.VIPs4, lab.VIPs6, lab.HostAddresses(1).V4.Addr(), n.Addresses().V4.Addr(), lab.MuxASN, lab.RouterASN, filepath.Join(lab.Dir(b.l.Topology.Name), "bgp-password"))
	next := b.file + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(text+services), 0o600), os.Rename(next, b.file)); err != nil {
		b.t.Fatal(err)
	}
}

// web returns the service with a VIP of this number and these ports, or port 80 if there are none.
func (b *singleBox) web(number int, ports ...int) string {
	vip, _ := lab.VIPAddresses(number)
	if len(ports) == 0 {
		ports = []int{80}
	}
	text := fmt.Sprintf("---\nkind: Service\nname: web\nvip: %s\nendpoints:\n", vip)
	for _, port := range ports {
		text += fmt.Sprintf("- {protocol: tcp, port: %d, backends: [{dip: 10.20.1.11, port: 8080, host: 10.20.1.1}], health: %s}\n", port, fastHTTP)
	}
	return text
}

// answers waits until client1 gets a response from a VIP.
func (b *singleBox) answers(number int) {
	b.t.Helper()
	vip, _ := lab.VIPAddresses(number)
	await(b.t, "an answer from "+vip.String(), func(ctx context.Context) error { return b.ask(ctx, number) })
}

// ask sends one request over a new connection.
func (b *singleBox) ask(ctx context.Context, number int) error {
	vip, _ := lab.VIPAddresses(number)
	transport := &http.Transport{DisableKeepAlives: true, DialContext: netdev.Dialer(b.l.Topology.Name + "-client1")}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+vip.String()+"/", nil)
	if err != nil {
		return err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// TestSingleBox tests the life of a balancer of one machine: the first start from a file, changes
// by the file, faults in it, kill -9 under traffic, a start with a wrong file, and a drain by the
// command line that survives a change of the file.
func TestSingleBox(t *testing.T) {
	topology := lab.DefaultTopology()
	topology.Name, topology.Muxes, topology.Hosts.Count = fmt.Sprintf("box%d", os.Getpid()), 1, 1
	t.Cleanup(func() {
		if err := errors.Join(lab.Down(context.Background(), topology.Name), os.RemoveAll("/sys/fs/bpf/"+topology.Name)); err != nil {
			t.Error(err)
		}
	})
	l, err := lab.Up(t.Context(), topology, lab.Options{Binary: program, FabricOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	b := &singleBox{t: t, l: l, dir: t.TempDir()}
	b.file = filepath.Join(b.dir, "shunt.yaml")
	t.Cleanup(func() {
		if log, err := os.ReadFile(filepath.Join(b.dir, "log")); err == nil && t.Failed() {
			t.Logf("--- shunt run\n%s", log)
		}
	})

	// A wrong file at the first start: nothing is made.
	b.write("---\nkind: Service\nname: web\n")
	b.start()
	var exit *exec.ExitError
	if err := b.cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("a first start with a wrong file ended with %v, want exit code 1", err)
	}
	if _, err := os.Stat(filepath.Join(b.dir, "manager")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the refused start left a data directory: %v", err)
	}

	b.write(b.web(1))
	b.start()
	t.Cleanup(func() { b.kill() })
	await(t, "a token for host1", func(context.Context) error {
		token, err := b.shunt("token", "create", "--node", "host1", "--role", "host")
		if err != nil {
			return errors.New(token)
		}
		return os.WriteFile(filepath.Join(b.dir, "host1.token"), []byte(token), 0o600)
	})
	host := l.Command(program, "host", "--name", "host1", "--interface", lab.Uplink, "--manager", b.address(), "--token-file", filepath.Join(b.dir, "host1.token"),
		"--state", filepath.Join(b.dir, "host"), "--run", filepath.Join(b.dir, "hostrun"), "--bpffs", "/sys/fs/bpf/"+topology.Name+"/host1")
	if err := l.StartOn("host1", host); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Process.Kill(); _ = host.Wait() })
	b.answers(1)

	// The file is everything: the VIP of the service moves, and the previous one is removed.
	b.write(b.web(2))
	b.answers(2)
	out, err := b.shunt("get", "services", "-o", "yaml")
	if err != nil || strings.Contains(out, "203.0.113.1\n") {
		t.Fatalf("after the change: %v\n%s", err, out)
	}

	// A faulty file changes nothing, and the error is reported with its position.
	b.write(b.web(2) + "---\nkind: Service\nname: more\nvip: 192.0.2.1\nendpoints: []\n")
	await(t, "the refusal in the log", func(context.Context) error {
		log, err := os.ReadFile(filepath.Join(b.dir, "log"))
		if err == nil && !bytes.Contains(log, []byte("services/more: endpoints")) {
			err = errors.New("not yet")
		}
		return err
	})
	if err := b.ask(t.Context(), 2); err != nil {
		t.Fatalf("after a refused change: %v", err)
	}

	// Without the process packets are still forwarded. A start with the wrong file keeps the last
	// good state.
	b.kill()
	for range 20 {
		if err := b.ask(t.Context(), 2); err != nil {
			t.Fatalf("while the process was away: %v", err)
		}
	}
	b.start()
	await(t, "the manager to answer again", func(context.Context) error {
		_, err := b.shunt("get", "services")
		return err
	})
	b.answers(2)

	// A drain by the command line is not part of the file.
	b.write(b.web(2))
	await(t, "the drain", func(context.Context) error {
		out, err := b.shunt("drain", "backend", "web", "10.20.1.11:8080")
		if err != nil {
			return errors.New(out)
		}
		return nil
	})
	b.write(b.web(2, 80, 81))
	if err := b.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	await(t, "the second endpoint", func(context.Context) error {
		out, err := b.shunt("get", "services", "-o", "yaml")
		if err == nil && !strings.Contains(out, "port: 81") {
			err = errors.New(out)
		}
		return err
	})
	if out, err := b.shunt("get", "services", "-o", "yaml"); err != nil || !strings.Contains(out, "drain: true") {
		t.Fatalf("a change of the file undid the drain: %v\n%s", err, out)
	}
}
