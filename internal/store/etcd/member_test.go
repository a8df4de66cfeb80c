package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// TestGrowth: a member that was alone and listened nowhere gets an address, then adds others; all
// of them have all data written meanwhile.
func TestGrowth(t *testing.T) {
	t.Parallel()
	g := &group{t: t, ca: newAuthority(t)}
	g.options, g.members = []Options{{Dir: t.TempDir(), Name: "m1", UnsafeNoFsync: true}}, make([]*Member, 1)
	first := g.start(0)
	put(t, first, "/alone", "1")
	if _, err := first.Add(t.Context(), "m2", "127.0.0.1:1"); !errors.Is(err, store.ErrMember) || !strings.Contains(err.Error(), "--peer") {
		t.Fatalf("a member that listens nowhere takes another: %v", err)
	}
	first.Close()
	g.options[0].Peer, g.options[0].TLS = freeAddr(t), g.ca.TLS
	first = g.start(0)
	if got := value(t, first, "/alone"); got != "1" {
		t.Fatalf("after the restart with an address: %q", got)
	}
	for range 2 {
		g.grow()
	}
	put(t, g.members[1], "/together", "3")
	for i, m := range g.members {
		if value(t, m, "/alone") != "1" || value(t, m, "/together") != "3" {
			t.Errorf("member %d lacks a key", i+1)
		}
		members, err := m.Members(t.Context())
		if err != nil || len(members) != 3 {
			t.Fatalf("member %d knows %+v, %v", i+1, members, err)
		}
		for k, other := range members {
			if other.Name != g.options[k].Name || other.Peer != g.options[k].Peer || other.Learner {
				t.Errorf("member %d knows %+v, want %s at %s with a vote", i+1, other, g.options[k].Name, g.options[k].Peer)
			}
		}
	}
	// One of three may fail.
	g.members[0].Close()
	put(t, g.members[2], "/without the first", "2")
	g.options[0].Peer = ""
	if m, err := Open(t.Context(), g.options[0]); err == nil {
		m.Close()
		t.Error("one of three started without its address")
	} else if !errors.Is(err, store.ErrMember) {
		t.Errorf("one of three without its address: %v", err)
	}
	// It returns at another address.
	g.options[0].Peer = freeAddr(t)
	if got := value(t, g.start(0), "/without the first"); got != "2" {
		t.Errorf("the first is back: %q", got)
	}
	// A member reports its own applied state, which may be briefly behind the others.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		members, err := g.members[2].Members(t.Context())
		if err == nil && members[0].Peer == g.options[0].Peer {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the others know %+v, %v, want the first at %s", members, err, g.options[0].Peer)
		}
	}
}

// TestAddAgain: an interrupted join is retried, and a member that never returns is removed.
func TestAddAgain(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	m, addr := g.members[0], freeAddr(t)
	initial, err := m.Add(t.Context(), "m2", addr)
	if err != nil {
		t.Fatal(err)
	}
	again, err := m.Add(t.Context(), "m2", addr)
	if err != nil || strings.Join(again, " ") != strings.Join(initial, " ") || len(initial) != 2 {
		t.Errorf("again: %v %v, first %v", again, err, initial)
	}
	put(t, m, "/a", "the one that does not come cannot hold up the others")
	for name, c := range map[string]struct{ name, peer, want string }{
		"name":    {"m2", freeAddr(t), "remove it first"},
		"address": {"m3", addr, "m2 has the address"},
		"another": {"m3", freeAddr(t), "m2 is joining"},
	} {
		if _, err := m.Add(t.Context(), c.name, c.peer); !errors.Is(err, store.ErrMember) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	members, err := m.Members(t.Context())
	if err != nil || len(members) != 2 || members[1] != (store.ClusterMember{Name: "m2", Peer: addr, Learner: true}) {
		t.Errorf("members: %+v %v", members, err)
	}
	if err := m.Remove(t.Context(), "m2"); err != nil {
		t.Error(err)
	}
	if err := m.Remove(t.Context(), "m2"); !errors.Is(err, store.ErrNoMember) {
		t.Errorf("removing what is gone: %v", err)
	}
	if err := m.Remove(t.Context(), "m1"); !errors.Is(err, store.ErrNoMajority) {
		t.Errorf("removing the last one: %v", err)
	}
	if _, err := m.Add(t.Context(), "m3", freeAddr(t)); err != nil {
		t.Errorf("adding after that: %v", err)
	}
}

// TestRemove: a removed member stops and cannot return; a majority stays.
func TestRemove(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	if err := g.members[0].Remove(t.Context(), "m3"); err != nil {
		t.Fatal(err)
	}
	<-g.members[2].life.Done()
	if _, _, _, err := g.members[2].Get(t.Context(), "/a"); !errors.Is(err, store.ErrRemoved) {
		t.Errorf("what was removed says %v", err)
	}
	g.members[2].Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if m, err := Open(ctx, g.options[2]); err == nil {
		m.Close()
		t.Error("what was removed starts again")
	} else if !errors.Is(err, store.ErrRemoved) {
		t.Errorf("what was removed starts with %v", err)
	}
	put(t, g.members[1], "/a", "two are left")
	// Without the second member the first has no majority, so it cannot remove the second.
	g.members[1].Close()
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := g.members[0].Remove(ctx, "m2"); err == nil {
		t.Error("one of two removed the other")
	}
}

// TestPeerPort: only certificates of managers are accepted.
func TestPeerPort(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	client := func(name, role string) tls.Certificate {
		cert, key, err := g.ca.ca.Client(name, role, time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	good, err := tls.LoadX509KeyPair(g.ca.TLS.Cert, g.ca.TLS.Key)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		certs []tls.Certificate
		in    bool
	}{
		"manager":                  {[]tls.Certificate{good}, true},
		"mux":                      {[]tls.Certificate{client("mux1", "mux")}, false},
		"host":                     {[]tls.Certificate{client("host1", "host")}, false},
		"admin":                    {[]tls.Certificate{client("ann", pki.RoleAdmin)}, false},
		"mux called like managers": {[]tls.Certificate{client(pki.ServerName, "mux")}, false},
		"another CA's manager":     {[]tls.Certificate{newAuthority(t).manager()}, false},
		"nobody":                   {nil, false},
	} {
		conn, err := tls.Dial("tcp", g.options[0].Peer, &tls.Config{
			RootCAs: g.ca.ca.Pool(), ServerName: pki.ServerName,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if len(c.certs) == 0 {
					return &tls.Certificate{}, nil
				}
				return &c.certs[0], nil
			},
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// With TLS 1.3 the server's refusal comes after the client's handshake.
		conn.Write([]byte("GET /version HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n"))
		reply := make([]byte, 12)
		_, err = conn.Read(reply)
		if in := err == nil && strings.HasPrefix(string(reply), "HTTP/1.1"); in != c.in {
			t.Errorf("%s: let in %v (%v), want %v", name, in, err, c.in)
		}
		conn.Close()
	}
	plain, err := net.Dial("tcp", g.options[0].Peer)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	plain.Write([]byte("GET /version HTTP/1.0\r\n\r\n"))
	reply := make([]byte, 64)
	if n, _ := plain.Read(reply); strings.Contains(string(reply[:n]), "etcdserver") {
		t.Errorf("without TLS: %q", reply[:n])
	}
}

func (a *authority) manager() tls.Certificate {
	return a.leaf(func(c *x509.Certificate) {
		c.DNSNames = []string{pki.ServerName}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	})
}
