package lab_test

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// fails reports an error of a part of a test.
func fails(t *testing.T, err error, what string, values ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", fmt.Sprintf(what, values...), err)
	}
}

// timestamps is T12 and T10: a cookie wherever there are timestamps, with small and large transfers
// both ways.
func (s *stacks) timestamps(t *testing.T) {
	for _, vm := range []string{vmWithout, vmUsual, vmClock} {
		for _, target := range s.plain[vm].targets() {
			v := visits(t, target)
			for range 30 {
				_, err := v.name()
				fails(t, err, "%s, %s", vm, target)
			}
			fails(t, v.download("/pattern"), "%s, %s: download", vm, target)
			fails(t, v.upload(s.dir), "%s, %s: upload", vm, target)
			sent, came := s.servers[vm].stampsOfAnswer(v.port), s.client.stampsOfAnswer(v.port)
			switch {
			case vm == vmWithout:
				if len(sent)+len(came) != 0 {
					t.Errorf("%s, %s: SYN-ACKs with timestamps %x, %x", vm, target, sent, came)
				}
			case len(sent) == 0 || len(came) == 0:
				t.Errorf("%s, %s: SYN-ACKs with timestamps: %x at the server, %x at the client", vm, target, sent, came)
			case sent[0] == came[0] || sent[0]&0x7fff != came[0]&0x7fff:
				t.Errorf("%s, %s: the server's timestamp %#x is %#x at the client, want other bits from the 15th on alone", vm, target, sent[0], came[0])
			}
		}
		for _, out := range []bool{true, false} {
			if whole := s.servers[vm].those(func(f frame) bool { return f.out == out && f.length > 3000 }); len(whole) == 0 {
				t.Errorf("%s: no packet of several segments passed its device (sent %v)", vm, out)
			}
		}
	}
}

// silence is T1: a server sends after a silence, or a client does, around half a turn of the clock
// and a whole one, and beyond.
func (s *stacks) silence(t *testing.T) {
	const half = (1 << 15) * time.Millisecond
	var all sync.WaitGroup
	for _, silent := range []time.Duration{half / 2, half - 1e6, half, half + 1e6, 2*half - 1e6, 2 * half, 2*half + 1e6, 70 * time.Second} {
		for _, vm := range []string{vmUsual, vmClock} {
			for _, target := range s.plain[vm].targets() {
				server, client := visits(t, target), visits(t, target)
				all.Go(func() {
					fails(t, server.pushed(silent), "%s, %s: a push of the server after %s", vm, target, silent)
					_, err := server.name()
					fails(t, err, "%s, %s: after the push after %s", vm, target, silent)
				})
				all.Go(func() {
					_, err := client.name()
					fails(t, err, "%s, %s: before %s of silence", vm, target, silent)
					time.Sleep(silent) // the silence under test
					_, err = client.name()
					fails(t, errors.Join(err, client.download("/pattern")), "%s, %s: the client after %s", vm, target, silent)
				})
			}
		}
	}
	all.Wait()
}

// blackHole is T2: no packet of the server arrives for a while, or all packets are lost both ways.
func (s *stacks) blackHole(t *testing.T) {
	for i, lost := range []time.Duration{200 * time.Millisecond, 2 * time.Second, 20 * time.Second} {
		var downloads sync.WaitGroup
		for _, target := range s.hole.targets() {
			v := visits(t, target)
			downloads.Go(func() { fails(t, v.download("/slow/pattern"), "%s, all lost for %s", target, lost) })
		}
		time.Sleep(time.Second) // during the download, which takes 4 s
		stop := drops(t, "client1", "shunt_hole", s.hole.fromVIPs("drop")...)
		time.Sleep(lost) // the loss under test
		stop()
		downloads.Wait()
		if i == 0 {
			continue
		}
		// Packets to the server are lost too.
		v := visits(t, s.hole.targets()[i%2])
		_, err := v.name()
		fails(t, err, "before a black hole")
		stop = drops(t, vmUsual, "shunt_hole", fmt.Sprintf("tcp sport %d drop", v.port))
		var asked sync.WaitGroup
		asked.Go(func() { fails(t, v.download("/pattern"), "nothing heard for %s", lost) })
		time.Sleep(lost)
		stop()
		asked.Wait()
	}
}

// lateAnswer is T3: SYN-ACKs are lost for 33 s, so that servers retransmit them. The server whose
// SYN-ACK arrives serves, with an echo that it accepts.
func (s *stacks) lateAnswer(t *testing.T) {
	stop := drops(t, "client1", "shunt_late", s.late.fromVIPs("tcp flags & (syn|ack) == syn|ack drop")...)
	var all sync.WaitGroup
	for _, target := range s.late.targets() {
		for range 3 {
			all.Go(func() {
				v, err := openVisit(target, 0)
				if err != nil {
					t.Errorf("%s: %v", target, err)
					return
				}
				defer v.conn.Close()
				for range 3 {
					_, err := v.name()
					fails(t, err, "%s: after a late SYN-ACK", target)
				}
				fails(t, v.download("/pattern"), "%s: after a late SYN-ACK", target)
				// The first SYN-ACK was sent long before the one that arrived.
				if answers := s.client.stampsOfAnswer(v.port); len(answers) < 4 {
					t.Errorf("%s: %d SYN-ACKs were sent", target, len(answers))
				}
			})
		}
	}
	time.Sleep(33 * time.Second) // the loss under test
	stop()
	all.Wait()
}

// optionsAt matches the negotiated options of a connection in the output of ss.
var optionsAt = regexp.MustCompile(`\b(ts|sack|wscale:\d+,\d+)\b`)

// synCookies is T4: a server with SYN cookies stores only a timestamp of a client's options. It
// recovers the same options with and without a cookie in it.
func (s *stacks) synCookies(t *testing.T) {
	web := s.plain[vmSYNCookies]
	before := map[string]uint64{}
	for _, name := range []string{"SyncookiesSent", "SyncookiesRecv", "SyncookiesFailed"} {
		before[name] = tcpCounter(t, vmSYNCookies, name)
	}
	for i, target := range web.targets() {
		var agreed []string
		node, err := shared.Topology.Find(vmSYNCookies)
		if err != nil {
			t.Fatal(err)
		}
		dip := node.Addresses().V4.Addr()
		if i == 1 {
			dip = node.Addresses().V6.Addr()
		}
		for _, to := range []string{netip.AddrPortFrom(dip, nginxPort).String(), target} {
			v := visits(t, to)
			_, err := v.name()
			fails(t, err, "%s", to)
			side, err := v.serverSide(vmSYNCookies)
			fails(t, err, "%s", to)
			agreed = append(agreed, strings.Join(optionsAt.FindAllString(side, -1), " "))
			fails(t, v.download("/pattern"), "%s: download", to)
			fails(t, v.upload(s.dir), "%s: upload", to)
		}
		if agreed[0] != agreed[1] || !strings.Contains(agreed[1], "wscale") || !strings.Contains(agreed[1], "sack") || !strings.Contains(agreed[1], "ts") {
			t.Errorf("%s: %q is agreed on, without cookies %q", target, agreed[1], agreed[0])
		}
	}
	for name, old := range before {
		if n := tcpCounter(t, vmSYNCookies, name) - old; (n == 0) != (name == "SyncookiesFailed") {
			t.Errorf("%s grew by %d", name, n)
		}
	}
}

// microseconds tests a server with timestamps in microseconds for this client, for more than a turn
// of such a clock.
func (s *stacks) microseconds(t *testing.T) {
	for _, target := range s.plain[vmMicroseconds].targets() {
		v := visits(t, target)
		for range 30 {
			_, err := v.name()
			fails(t, err, "%s", target)
		}
		fails(t, v.pushed(500*time.Millisecond), "%s: push", target)
		fails(t, v.download("/pattern"), "%s: download", target)
		fails(t, v.upload(s.dir), "%s: upload", target)
		stamps := s.servers[vmMicroseconds].stampsTo(v.port, false)
		if len(stamps) < 2 || stamps[len(stamps)-1]-stamps[0] < 500_000 {
			t.Errorf("%s: of %d timestamps of half a second and more the last is %d after the first: not microseconds", target, len(stamps), stamps[len(stamps)-1]-stamps[0])
		}
	}
}

// loss is T6: with one of a hundred packets lost each way a server undoes no more recoveries than
// without cookies.
func (s *stacks) loss(t *testing.T) {
	web := s.plain[vmLossy]
	dip := fmt.Sprintf("%s:%d", dipOf(t, vmLossy), nginxPort)
	drops(t, vmLossy, "shunt_loss", fmt.Sprintf("tcp dport %d numgen random mod 100 == 0 drop", nginxPort))
	drops(t, "client1", "shunt_loss", append(web.fromVIPs("numgen random mod 100 == 0 drop"), fmt.Sprintf("ip saddr %s numgen random mod 100 == 0 drop", dipOf(t, vmLossy)))...)
	names := []string{"TCPFullUndo", "TCPPartialUndo", "TCPDSACKUndo", "TCPLossUndo", "TCPSpuriousRTOs"}
	measure := func(targets ...string) (undone, lost uint64) {
		before := map[string]uint64{}
		for _, name := range append(names, "TCPLostRetransmit", "TCPSackRecovery") {
			before[name] = tcpCounter(t, vmLossy, name)
		}
		for i := range 4 {
			v := visits(t, targets[i%len(targets)])
			for range 5 {
				fails(t, v.download("/pattern"), "%s: download", targets[i%len(targets)])
			}
			fails(t, v.upload(s.dir), "%s: upload", targets[i%len(targets)])
		}
		for _, name := range names {
			undone += tcpCounter(t, vmLossy, name) - before[name]
		}
		return undone, tcpCounter(t, vmLossy, "TCPSackRecovery") - before["TCPSackRecovery"]
	}
	plain, plainLost := measure(dip)
	stamped, lost := measure(web.targets()...)
	t.Logf("%d of %d recoveries undone, without cookies %d of %d", stamped, lost, plain, plainLost)
	if lost == 0 || plainLost == 0 {
		t.Errorf("%d and %d recoveries: nothing was lost", lost, plainLost)
	}
	if stamped > 3*plain+30 {
		t.Errorf("%d recoveries were undone, %d without cookies", stamped, plain)
	}
}
