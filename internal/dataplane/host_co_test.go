package dataplane

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// coEnv is a client and a server that owns VIPs, each in a namespace, with the handshake program on the server's uplink.
type coEnv struct {
	t              *testing.T
	client, server string
	host           *Host
	co             *HostCO
	dir            string
}

const (
	coServer4, coClient4 = "10.77.0.1", "10.77.0.2"
	coServer6, coClient6 = "2001:db8:77::1", "2001:db8:77::2"
	coVIP4, coVIP6       = "203.0.113.77", "2001:db8:f::77"
)

func newCOEnv(t *testing.T) *coEnv {
	t.Helper()
	n := hostEnvs.Add(1)
	e := &coEnv{t: t, client: fmt.Sprintf("coc-%d-%d", os.Getpid(), n), server: fmt.Sprintf("cos-%d-%d", os.Getpid(), n)}
	ns := map[string]*netdev.Namespace{}
	for _, name := range []string{e.client, e.server} {
		must(t, netdev.CreateNamespace(name))
		t.Cleanup(func() { netdev.DeleteNamespace(name) })
		o, err := netdev.OpenNamespace(name)
		must(t, err)
		defer o.Close()
		must(t, o.SetUp("lo", true))
		ns[name] = o
	}
	c, s := ns[e.client], ns[e.server]
	must(t, netdev.AddVeth(netdev.VethEnd{Namespace: c, Name: "up1"}, netdev.VethEnd{Namespace: s, Name: "up0"}, 1500))
	for o, addrs := range map[*netdev.Namespace][]string{c: {coClient4 + "/24", coClient6 + "/64"}, s: {coServer4 + "/24", coServer6 + "/64"}} {
		dev := map[*netdev.Namespace]string{c: "up1", s: "up0"}[o]
		must(t, o.SetUp(dev, true))
		for _, a := range addrs {
			must(t, o.AddAddress(dev, netip.MustParsePrefix(a)))
		}
	}
	must(t, s.AddAddress("lo", netip.MustParsePrefix(coVIP4+"/32")))
	must(t, s.AddAddress("lo", netip.MustParsePrefix(coVIP6+"/128")))
	must(t, c.AddRoute(netdev.Route{Destination: netip.MustParsePrefix(coVIP4 + "/32"), Device: "up1", Via: netip.MustParseAddr(coServer4)}))
	must(t, c.AddRoute(netdev.Route{Destination: netip.MustParsePrefix(coVIP6 + "/128"), Device: "up1", Via: netip.MustParseAddr(coServer6)}))
	e.dir = filepath.Join(bpffsRoot, "test-"+e.server)
	t.Cleanup(func() { must(t, DetachHost(e.dir)) })
	must(t, netdev.In(e.server, func() error {
		i, err := net.InterfaceByName("up0")
		if err != nil {
			return err
		}
		if e.host, err = OpenHost(HostOptions{Ifindex: i.Index, Dir: e.dir, Flows: MinHostFlows}); err != nil {
			return err
		}
		e.co, err = e.host.OpenCO()
		return err
	}))
	t.Cleanup(func() { e.co.Close(); e.host.Close() })
	return e
}

// coEndpoint is an endpoint of the server's, member 200 of it.
func coEndpointOf(vip string, port uint16) COEndpoint {
	return COEndpoint{
		Key: lb.EndpointKey{VIP: netip.MustParseAddr(vip), Protocol: lb.TCP, Port: port}, Member: 200,
		Keys: [2][16]byte{{1, 2, 3}, {4, 5, 6}}, Live: [2]bool{true, true}, Shuffled: [2]bool{false, true}, Mint: 1, MSS: 1400,
	}
}

// serve answers each line of a connection to the VIP with the same line.
func (e *coEnv) serve(vip string, port uint16, mptcp bool) {
	e.t.Helper()
	var c net.ListenConfig
	c.SetMultipathTCP(mptcp)
	must(e.t, netdev.In(e.server, func() error {
		l, err := c.Listen(context.Background(), "tcp", netip.AddrPortFrom(netip.MustParseAddr(vip), port).String())
		if err != nil {
			return err
		}
		e.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					io.Copy(conn, conn)
				}()
			}
		}()
		return nil
	}))
}

// closer says bye to whoever connects, and closes first.
func (e *coEnv) closer(vip string, port uint16) {
	e.t.Helper()
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	must(e.t, netdev.In(e.server, func() error {
		l, err := c.Listen(context.Background(), "tcp", netip.AddrPortFrom(netip.MustParseAddr(vip), port).String())
		if err != nil {
			return err
		}
		e.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				conn.Write([]byte("bye"))
				conn.Close()
			}
		}()
		return nil
	}))
}

// dial connects from the client.
func (e *coEnv) dial(vip string, port uint16) net.Conn { return e.dialFrom(vip, port, 0) }

// dialFrom is dial from a port.
func (e *coEnv) dialFrom(vip string, port uint16, from int) net.Conn {
	e.t.Helper()
	var conn net.Conn
	d := net.Dialer{FallbackDelay: -1, Timeout: 30 * time.Second, LocalAddr: &net.TCPAddr{Port: from}}
	d.SetMultipathTCP(false)
	must(e.t, netdev.In(e.client, func() (err error) {
		conn, err = d.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr(vip), port).String())
		return err
	}))
	e.t.Cleanup(func() { conn.Close() })
	return conn
}

// echo sends bytes and reads them back.
func (e *coEnv) echo(conn net.Conn, size int) {
	e.t.Helper()
	out := make([]byte, size)
	for i := range out {
		out[i] = byte(i * 7)
	}
	go conn.Write(out)
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	in := make([]byte, size)
	if _, err := io.ReadFull(conn, in); err != nil {
		e.t.Fatal(err)
	}
	if string(in) != string(out) {
		e.t.Fatal("other bytes came back")
	}
}

// coSeen is what of a server's segment the test looks at.
type coSeen struct {
	flags   byte
	tsval   uint32
	wscale  int
	mss     int
	sack    bool
	stamped bool
}

// watch tells of the TCP segments that come to the client from a port.
func (e *coEnv) watch(port uint16) func() []coSeen {
	e.t.Helper()
	var fd int
	must(e.t, netdev.In(e.client, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, int(be16(unix.ETH_P_ALL)))
		return err
	}))
	e.t.Cleanup(func() { unix.Close(fd) })
	return func() (seen []coSeen) {
		buf := make([]byte, 1<<17)
		for {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err == syscall.EAGAIN {
				return seen
			}
			must(e.t, err)
			if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			b := buf[:n]
			head := 40
			if b[0]>>4 == 4 {
				head = 20
			}
			if len(b) < head+20 || (b[0]>>4 == 4 && b[9] != 6) || (b[0]>>4 == 6 && b[6] != 6) || binary.BigEndian.Uint16(b[head:]) != port {
				continue
			}
			seen = append(seen, coOptions(b[head:]))
		}
	}
}

// coOptions reads a TCP header.
func coOptions(tcp []byte) coSeen {
	s := coSeen{flags: tcp[13], wscale: -1}
	for o := tcp[20 : tcp[12]>>4*4]; len(o) > 0; {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		if o[0] == 0 || len(o) < 2 {
			break
		}
		switch o[0] {
		case 2:
			s.mss = int(binary.BigEndian.Uint16(o[2:]))
		case 3:
			s.wscale = int(o[2])
		case 4:
			s.sack = true
		case 8:
			s.stamped, s.tsval = true, binary.BigEndian.Uint32(o[2:])
		}
		o = o[o[1]:]
	}
	return s
}

func (e *coEnv) counts(before map[string]uint64) map[string]uint64 {
	e.t.Helper()
	now, err := e.co.Counters()
	must(e.t, err)
	out := map[string]uint64{}
	for name, n := range now {
		if n != before[name] {
			out[name] = n - before[name]
		}
	}
	return out
}

// nowMillis is the shared clock.
func nowMillis() uint32 { return uint32(time.Now().UnixMilli()) }

func TestHandshakesPutTheCookieIntoTheServersClock(t *testing.T) {
	for _, v := range []struct{ vip, client string }{{coVIP4, coClient4}, {coVIP6, coClient6}} {
		e := newCOEnv(t)
		ep := coEndpointOf(v.vip, 80)
		must(t, e.co.Apply(COSetup{SACK: true, WindowScaling: true}, []COEndpoint{ep}))
		e.serve(v.vip, 80, false)
		read := e.watch(80)
		conn := e.dial(v.vip, 80)
		e.echo(conn, 1)
		e.echo(conn, 4<<20)
		flow := cookie.Flow{Client: conn.LocalAddr().(*net.TCPAddr).AddrPort(), VIP: netip.AddrPortFrom(ep.Key.VIP, 80)}
		prf := cookie.PRF(ep.Keys[1], flow)
		segments := read()
		if len(segments) < 3 {
			t.Fatalf("%d segments of the server were seen", len(segments))
		}
		if f := segments[0]; f.flags != 0x12 || !f.sack || f.wscale != coWindowScale || f.mss != 1400 {
			t.Fatalf("the first segment is %+v", f)
		}
		for i, s := range segments {
			c := cookie.OffsetCookie(s.tsval, nowMillis())
			id, ok := cookie.DecodeShort(prf, c, cookie.SecretOf(ep.Keys[1]))
			if !s.stamped || cookie.ShortKeyID(c) != 1 || !ok || id != ep.Member {
				t.Fatalf("segment %d of %d: %+v carries cookie %#x: member %d, %v", i, len(segments), s, c, id, ok)
			}
		}
		counts := e.counts(nil)
		// The first data may come with the numbers of the handshake once more.
		delete(counts, "pass_other")
		if counts["answered"] != 1 || counts["accepted"] != 1 || len(counts) != 2 {
			t.Errorf("counted %v", counts)
		}
		// TCPI_OPT_TIMESTAMPS, TCPI_OPT_SACK and TCPI_OPT_WSCALE (linux/tcp.h).
		info := tcpInfo(t, conn)
		if info.Options&7 != 7 {
			t.Errorf("the client has options %b", info.Options)
		}
		if n := snmp(t, e.client, "TcpExt", "PAWSEstab") + snmp(t, e.server, "TcpExt", "PAWSEstab") + snmp(t, e.client, "Tcp", "InCsumErrors"); n != 0 {
			t.Errorf("%d segments were refused for their time or their sum", n)
		}
	}
}
