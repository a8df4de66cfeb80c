package proofrun

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/netdev"
)

// pair is a client and a server, a namespace each, joined by one link.
type pair struct{ client, server string }

func newPair(t *testing.T) pair {
	t.Helper()
	p := pair{fmt.Sprintf("pub%d-client", os.Getpid()), fmt.Sprintf("pub%d-server", os.Getpid())}
	var ends []*netdev.Namespace
	for _, name := range []string{p.client, p.server} {
		if err := netdev.CreateNamespace(name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := netdev.DeleteNamespace(name); err != nil {
				t.Error(err)
			}
		})
		ns, err := netdev.OpenNamespace(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ns.Close)
		ends = append(ends, ns)
	}
	if err := netdev.AddVeth(netdev.VethEnd{Namespace: ends[0], Name: "eth0"}, netdev.VethEnd{Namespace: ends[1], Name: "eth0"}, 1500); err != nil {
		t.Fatal(err)
	}
	for i, ns := range ends {
		if err := ns.AddAddress("eth0", netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", 1+i))); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

const serverPort = 7777

// listen accepts connections in the server's namespace.
func (p pair) listen(t *testing.T) (l net.Listener) {
	t.Helper()
	err := netdev.In(p.server, func() (err error) {
		l, err = net.Listen("tcp4", ":"+strconv.Itoa(serverPort))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// attach puts the published encoding onto the server's device.
func (p pair) attach(t *testing.T, bits uint8) (published *Published) {
	t.Helper()
	err := netdev.In(p.server, func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		published, err = AttachPublished(dev.Index, serverPort, bits)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := published.Close(); err != nil {
			t.Error(err)
		}
	})
	return published
}

// counter reads a counter of the kernel's TCP in a namespace.
func counter(t *testing.T, namespace, name string) (value uint64) {
	t.Helper()
	err := netdev.In(namespace, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for j, n := range names {
				if n == name {
					value, err = strconv.ParseUint(values[j], 10, 64)
					return err
				}
			}
		}
		return fmt.Errorf("no counter %s", name)
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// open makes so many connections and says a word over each, both ways.
func (p pair) open(t *testing.T, l net.Listener, count int) (clients, servers []net.Conn) {
	t.Helper()
	for range count {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c, err := netdev.Dialer(p.client)(ctx, "tcp4", fmt.Sprintf("192.0.2.2:%d", serverPort))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
			say(t, way[0], way[1])
		}
		clients, servers = append(clients, c), append(servers, s)
	}
	return clients, servers
}

// say sends a word from one end to the other.
func say(t *testing.T, from, to net.Conn) {
	t.Helper()
	write(t, from)
	read(t, to)
}

func write(t *testing.T, from net.Conn) {
	t.Helper()
	if _, err := from.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, to net.Conn) {
	t.Helper()
	if err := to.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(to, make([]byte, 4)); err != nil {
		t.Fatalf("%s waits for a word: %v", to.LocalAddr(), err)
	}
}

// With 11 bits a client takes what is less than two seconds later. Connections work with it, and the server takes every echo for its own; after a longer silence
// clients drop what it sends as old, and take it only when it was sent again and again.
func TestPublishedStalls(t *testing.T) {
	const bits, connections = 11, 12
	half := time.Millisecond << bits
	p := newPair(t)
	l, published := p.listen(t), p.attach(t, bits)
	clients, servers := p.open(t, l, connections)
	if n := counter(t, p.client, "PAWSEstab") + counter(t, p.server, "PAWSEstab") + counter(t, p.server, "TSEcrRejected"); n != 0 {
		t.Errorf("%d segments were dropped before any silence", n)
	}
	silent := time.NewTimer(half + half/20)
	<-silent.C // the silence itself; each connection's clock begins elsewhere, so that some stall however long it lasts
	for _, s := range servers {
		write(t, s)
	}
	for _, c := range clients {
		read(t, c)
	}
	dropped := counter(t, p.client, "PAWSEstab")
	if dropped == 0 {
		t.Error("no client dropped anything as old")
	}
	counts, err := published.Counts()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d segments dropped as old; %+v", dropped, counts)
	if counts.Stamped < 4*connections || counts.Restored < 3*connections || counts.Failed != 0 {
		t.Errorf("counted %+v", counts)
	}
}

func TestAttachPublishedRefuses(t *testing.T) {
	for _, bits := range []uint8{7, 17} {
		if _, err := AttachPublished(1, 80, bits); err == nil || !strings.Contains(err.Error(), "must be 8 to 16") {
			t.Errorf("%d bits: %v", bits, err)
		}
	}
}
