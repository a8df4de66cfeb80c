package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// TestTranslated checks that servers without any part of Shunt serve clients of VIPs of both
// families through the muxes: downloads, uploads of many connections over both muxes, and
// datagrams, with and without cookies, whatever the servers' timestamps. No kernel drops a segment
// because of its timestamp.
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
			// Enough concurrent connections to use both muxes and all servers.
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

// download checks the file of nginx, byte by byte.
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

// patternCheck accepts only the bytes of the pattern.
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

// strangeTimestamps returns the kernels' counters of segments dropped because of their timestamps,
// at the client and at servers.
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

// TestTranslatedSYNCookies checks that a server with SYN cookies (net.ipv4.tcp_syncookies=2) reads
// window scale and SACK from the first echo, which is its own timestamp with the form split-r.
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
	// Each connection has a line of its options. Those of checks, which come from the muxes, may be
	// present too.
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

// TestTranslatedSilence checks that the push of a server that was silent for longer than a turn of
// a 16-bit clock, 65.5 s, arrives immediately, with and without timestamps stamped by the mux.
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

// hearAfter requests a push after a silence, and waits for it.
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

// TestTranslatedDatagrams checks that UDP passes the muxes both ways, each client's flows to one
// server.
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

// echoes sends datagrams over one flow until each was echoed.
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

// TestTranslatedPathMTU checks a path to the client with a smaller MTU than the server's packets:
// the router's ICMP message reaches the server translated, because otherwise no large packet would
// arrive. The router may send it to any mux of the VIP, so the VIP is on one.
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
