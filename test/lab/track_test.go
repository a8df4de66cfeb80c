package lab_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// tcpInfo returns the kernel's state of a connection.
func tcpInfo(t *testing.T, conn net.Conn) *unix.TCPInfo {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	var asked error
	if err := raw.Control(func(fd uintptr) { info, asked = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); err != nil {
		t.Fatal(err)
	}
	if asked != nil {
		t.Fatal(asked)
	}
	return info
}

// sent returns the traffic that clients sent over connections after their SYNs, by the kernel's
// counters: segments, the bytes of their IP packets, and how many segments were retransmitted, some
// of which may have been SYNs.
func (c connections) sent(t *testing.T) (segments, bytes, again uint64) {
	t.Helper()
	for _, conn := range c {
		info, header := tcpInfo(t, conn), uint64(20+20+12)
		if conn.RemoteAddr().(*net.TCPAddr).IP.To4() == nil {
			header += 20
		}
		segments += uint64(info.Segs_out) - 1
		bytes += (uint64(info.Segs_out)-1)*header + info.Bytes_sent
		again += uint64(info.Total_retrans)
	}
	return segments, bytes, again
}

// records returns the muxes' records of a service's connections, those of one mux if it is named.
func (s service) records(ctx context.Context, t *testing.T, mux string) (open, closed int, packets, bytes uint64, err error) {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		return 0, 0, 0, 0, err
	}
	for _, vip := range s.vips() {
		answer, err := client.Flows(ctx, connect.NewRequest(&apiv1.FlowsRequest{Vip: vip.String(), Node: mux}))
		if err != nil {
			return 0, 0, 0, 0, err
		}
		for _, r := range answer.Msg.GetResults() {
			for _, f := range r.GetFlows() {
				switch f.GetClass() {
				case "open":
					open++
				case "closed":
					closed++
				default:
					continue // of the flow table
				}
				packets, bytes = packets+f.GetPackets(), bytes+f.GetBytes()
			}
		}
	}
	return open, closed, packets, bytes, nil
}

// awaitRecords waits until there are this many records.
func (s service) awaitRecords(t *testing.T, mux string, open, closed int) {
	t.Helper()
	await(t, fmt.Sprintf("%d records of open connections, %d of closed ones", open, closed), func(ctx context.Context) error {
		o, c, _, _, err := s.records(ctx, t, mux)
		if err == nil && (o != open || c != closed) {
			err = fmt.Errorf("there are %d and %d", o, c)
		}
		return err
	})
}

// Muxes count the packets that the client sent over each connection to an endpoint with track
// exactly as the client's kernel does. A reset ends the record immediately, a FIN after a while. A
// lost mux loses its records, but no connection breaks.
func TestTrackedConnections(t *testing.T) {
	logsOnFailure(t, shared)
	s := service{name: "tracked", number: 173, protocol: "tcp", port: 7, dipPort: 7, backends: everyVM[:4], more: "  affinity: cookie\n  track: true\n"}
	s.apply(t)
	awaitKeys(t, s.vips(), "steady")
	s.awaitHops(t, shared.Topology.Muxes)
	s.awaitAlive(t, len(s.backends))
	conns := dialMany(t, s.targets(), 20)
	for range 10 {
		conns.speak(t, "counted")
	}
	await(t, "records that say what clients sent", func(ctx context.Context) error {
		segments, bytes, again := conns.sent(t)
		open, closed, packets, octets, err := s.records(ctx, t, "")
		if err != nil {
			return err
		}
		if open != len(conns) || closed != 0 || packets > segments || packets+again < segments || again == 0 && octets != bytes {
			return fmt.Errorf("%d open, %d closed, %d packets, %d bytes; clients sent %d segments (%d again), %d bytes", open, closed, packets, octets, segments, again, bytes)
		}
		return nil
	})
	for _, conn := range conns[:5] {
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	s.awaitRecords(t, "", 15, 0)
	for _, conn := range conns[5:10] {
		conn.Close()
	}
	s.awaitRecords(t, "", 10, 5)
	rest := conns[10:]
	extend := func() {
		for _, conn := range rest {
			if err := conn.SetDeadline(time.Now().Add(4 * eventually)); err != nil {
				t.Fatal(err)
			}
		}
	}
	extend()
	// A minute after the FIN, and the interval of sweeps.
	for ctx, end := t.Context(), time.Now().Add(4*eventually); ; {
		_, closed, _, _, err := s.records(ctx, t, "")
		if err == nil && closed == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d records of closed connections are left: %v", closed, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
	s.awaitRecords(t, "", 10, 0)
	if err := shared.LoseMux(t.Context(), "mux1"); err != nil {
		t.Fatal(err)
	}
	s.awaitHops(t, shared.Topology.Muxes-1)
	extend()
	rest.speak(t, "mux1 is lost")
	if shared.Topology.Muxes == 2 {
		s.awaitRecords(t, "mux2", len(rest), 0)
	}
	if err := shared.ReviveMux("mux1"); err != nil {
		t.Fatal(err)
	}
	if err := shared.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.awaitHops(t, shared.Topology.Muxes)
	rest.speak(t, "mux1 is back")
}

// Muxes count the datagrams with a server id that a QUIC client sent over each path. A migration
// opens another record, and the previous one ends by its idle timeout while the download continues.
func TestTrackedQUIC(t *testing.T) {
	logsOnFailure(t, shared)
	s := quicService("tracked-quic", 174, "{format: quiclb}", "host1-vm1", "host2-vm1")
	s.more += "  track: true\n  idle: {untrusted: 5s, trusted: 10s}\n"
	s.up(t)
	for _, vm := range s.backends {
		s.serveQUIC(t, vm)
	}
	v4, v6 := moreAddresses(t)
	var movers []*mover
	for _, target := range s.targets() {
		from := v4
		if netip.MustParseAddrPort(target).Addr().Is6() {
			from = v6
		}
		m := startMover(t, "quic-go to "+target, program, "lab-quic", target, "--from", strings.Join(from, ","), "--names", "0")
		m.want(t, "connected")
		movers = append(movers, m)
	}
	s.awaitRecords(t, "", len(movers), 0)
	tell(t, movers, "moved", func(int) string { return "move" })
	s.awaitRecords(t, "", 2*len(movers), 0)
	s.awaitRecords(t, "", len(movers), 0)
	_, _, before, _, err := s.records(t.Context(), t, "")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "records that go on counting", func(ctx context.Context) error {
		open, _, packets, octets, err := s.records(ctx, t, "")
		if err == nil && (open != len(movers) || packets <= before || octets < 28*packets) {
			err = fmt.Errorf("%d open, %d packets (%d before), %d bytes", open, packets, before, octets)
		}
		return err
	})
	tell(t, movers, "ended", func(int) string { return "end" })
}
