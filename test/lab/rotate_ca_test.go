package lab_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/goccy/go-yaml"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/pki"
)

// caLab is a separate lab with three managers, whose CA is replaced.
type caLab struct {
	*lab.Lab
	t *testing.T
}

// command returns a command line of shunt against the lab.
func (l caLab) command(args ...string) *exec.Cmd {
	return exec.Command(program, append([]string{"--lab", l.Topology.Name}, args...)...)
}

// dialAll opens connections from the client to targets.
func (l caLab) dialAll(targets []string, n int) (all connections) {
	l.t.Helper()
	for i := range n {
		ctx, cancel := context.WithTimeout(l.t.Context(), eventually)
		conn, err := netdev.Dialer(l.Topology.Name+"-client1")(ctx, "tcp", targets[i%len(targets)])
		cancel()
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { conn.Close() })
		all = append(all, conn)
	}
	return all
}

// echo sends a message to an echo service over a new connection.
func (l caLab) echo(ctx context.Context, target string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := netdev.Dialer(l.Topology.Name+"-client1")(ctx, "tcp", target)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("x")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// rotation returns the phase and the leader, from any manager.
func (l caLab) rotation() (phase, leader string) {
	client, err := l.Client()
	if err != nil {
		return "", ""
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Second)
	defer cancel()
	res, err := client.RotateCA(ctx, connect.NewRequest(&apiv1.RotateCARequest{}))
	if err != nil {
		return "", ""
	}
	st, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return res.Msg.GetPhase(), ""
	}
	return res.Msg.GetPhase(), st.Msg.GetLeader()
}

// adminPair reads the administrator's certificate in a client configuration, and the CAs.
func adminPair(t *testing.T, file string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		CA, Cert, Key string
		Server        any
	}
	if err := yaml.Unmarshal(content, &c); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair([]byte(c.Cert), []byte(c.Key))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(c.CA))
	return pair, roots
}

// refuses returns nil when a manager refuses a certificate, and an error when it accepts it or does
// not respond. A server's alert about the client's certificate arrives with the first read.
func (l caLab) refuses(address string, pair tls.Certificate, roots *x509.CertPool) error {
	ctx, cancel := context.WithTimeout(l.t.Context(), eventually)
	defer cancel()
	raw, err := netdev.Dialer(l.Topology.Name+"-router1")(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(eventually))
	conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: pki.ServerName, Certificates: []tls.Certificate{pair}})
	if err := conn.Handshake(); err == nil {
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if err == nil {
			return errors.New("the certificate is taken")
		}
	}
	if err != nil && !strings.Contains(err.Error(), "tls: ") {
		return fmt.Errorf("no refusal by TLS: %w", err)
	}
	return nil
}

// TestRotateCAUnderTraffic replaces the CA of a cluster of three managers while connections
// exchange messages all the time. The command and the leader are killed in each phase in which
// managers restart. No connection breaks. Afterwards no credential of an old data directory of a
// manager, and none made with the key in it, is accepted.
func TestRotateCAUnderTraffic(t *testing.T) {
	topology := lab.DefaultTopology()
	topology.Name, topology.Managers, topology.Hosts.Count, topology.Routers.Daemon = fmt.Sprintf("ca%d", os.Getpid()), 3, 2, daemon()
	t.Cleanup(func() {
		if err := lab.Down(context.Background(), topology.Name); err != nil {
			t.Error(err)
		}
	})
	up, err := lab.Up(t.Context(), topology, lab.Options{Binary: program})
	if err != nil {
		t.Fatal(err)
	}
	l := caLab{up, t}
	logsOnFailure(t, up)
	vms := []string{"host1-vm1", "host2-vm1"}
	flows := service{name: "flows", number: 10, protocol: "tcp", port: 7, dipPort: 7, backends: vms}
	cookies := service{name: "cookies", number: 11, protocol: "tcp", port: 7, dipPort: 7, backends: vms, more: "  affinity: cookie\n"}
	hashed := service{name: "hashed", number: 12, protocol: "tcp", port: 7, dipPort: 7, backends: vms, more: "  affinity: hash\n"}
	var targets []string
	for _, s := range []service{flows, cookies, hashed} {
		if _, err := l.Apply(t.Context(), s.yaml(t)); err != nil {
			t.Fatal(err)
		}
		for _, target := range s.targets() {
			await(t, "an echo from "+target, func(ctx context.Context) error { return l.echo(ctx, target) })
			targets = append(targets, target)
		}
	}
	conns := l.dialAll(targets, 60)
	conns.speak(t, "opened")
	talking := conns.talk()

	data := filepath.Dir(l.AdminConfig())
	formerAdmin, formerRoots := adminPair(t, l.AdminConfig())
	captured := map[string]tls.Certificate{"the administrator's certificate": formerAdmin}
	captured["the certificate of a manager"], err = tls.LoadX509KeyPair(filepath.Join(data, "pki", "manager.crt"), filepath.Join(data, "pki", "manager.key"))
	if err != nil {
		t.Fatal(err)
	}
	var ca *pki.CA
	if cert, err := os.ReadFile(filepath.Join(data, "pki", "ca.crt")); err != nil {
		t.Fatal(err)
	} else if key, err := os.ReadFile(filepath.Join(data, "pki", "ca.key")); err != nil {
		t.Fatal(err)
	} else if ca, err = pki.ParseCA(cert, key); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{pki.RoleAdmin, pki.RoleManager, "mux"} {
		cert, key, err := ca.Client("mux1", role, time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if captured["a certificate of role "+role+" by the captured key"], err = tls.X509KeyPair(cert, key); err != nil {
			t.Fatal(err)
		}
	}

	killed := map[string]bool{}
	began := time.Now()
	for done := false; !done; {
		cmd := l.command("rotate", "ca")
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for running := true; running; {
			select {
			case err := <-ended:
				t.Log(out.String())
				if err != nil {
					t.Fatalf("rotate ca: %v", err)
				}
				running, done = false, true
				continue
			case <-time.After(50 * time.Millisecond):
			}
			phase, leader := l.rotation()
			if killed[phase] || leader == "" || phase != "trust" && phase != "retire" {
				continue
			}
			killed[phase] = true
			t.Logf("phase %s after %s: kill the command and %s, which leads", phase, time.Since(began).Round(time.Millisecond), leader)
			cmd.Process.Kill()
			<-ended
			if err := l.KillManager(t.Context(), leader); err != nil {
				t.Fatal(err)
			}
			if err := l.StartManager(leader); err != nil {
				t.Fatal(err)
			}
			running = false
		}
	}
	t.Logf("replaced in %s, with two kills of the leader and of the command", time.Since(began).Round(time.Millisecond))
	if !killed["trust"] || !killed["retire"] {
		t.Errorf("killed in phases %v: want trust and retire", killed)
	}
	present, roots := adminPair(t, l.AdminConfig())
	for i := range topology.Managers {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, 0, byte(11 + i)}), lab.ManagerPort).String()
		if err := l.refuses(at, present, roots); err == nil {
			t.Errorf("%s refuses the administrator's new certificate, so that the refusals below show nothing", at)
		}
		for what, pair := range captured {
			if err := l.refuses(at, pair, roots); err != nil {
				t.Errorf("%s, %s: %v", at, what, err)
			}
			peer := net.JoinHostPort(strings.Split(at, ":")[0], fmt.Sprint(lab.PeerPort))
			if err := l.refuses(peer, pair, roots); err != nil {
				t.Errorf("the store at %s, %s: %v", peer, what, err)
			}
		}
		if err := l.refuses(at, present, formerRoots); err != nil {
			t.Errorf("%s shows a certificate of the former CA: %v", at, err)
		}
	}
	// Nodes follow: later changes arrive.
	flows.health = "{http: {path: /healthz}, port: 8080, interval: 300ms, timeout: 200ms, rise: 2, fall: 4}"
	revision, err := l.Apply(t.Context(), flows.yaml(t))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "all nodes at the newest revision", func(ctx context.Context) error {
		client, err := l.Client()
		if err != nil {
			return err
		}
		res, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
		if err != nil {
			return err
		}
		for _, n := range res.Msg.GetNodes() {
			if !n.GetConnected() || n.GetSyncedRevision() < revision {
				return fmt.Errorf("%s: connected %v, revision %d", n.GetName(), n.GetConnected(), n.GetSyncedRevision())
			}
		}
		return nil
	})
	broken := talking.end()
	for i, err := range broken {
		t.Errorf("connection %d broke: %v", i, err)
	}
	t.Logf("%d of %d connections broke", len(broken), len(conns))
}
