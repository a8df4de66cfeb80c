package dataplane

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// tcpInfo is what the kernel knows of a connection.
func tcpInfo(t *testing.T, conn net.Conn) *unix.TCPInfo {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	must(t, err)
	var info *unix.TCPInfo
	must(t, raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	must(t, err)
	return info
}

// snmp is a counter of a namespace's TCP.
func snmp(t *testing.T, namespace, group, name string) uint64 {
	t.Helper()
	var found uint64
	must(t, netdev.In(namespace, func() error {
		for _, file := range []string{"/proc/thread-self/net/snmp", "/proc/thread-self/net/netstat"} {
			f, err := os.Open(file)
			if err != nil {
				return err
			}
			defer f.Close()
			lines := bufio.NewScanner(f)
			for lines.Scan() {
				names := strings.Fields(lines.Text())
				if !lines.Scan() || names[0] != group+":" {
					continue
				}
				for i, v := range strings.Fields(lines.Text()) {
					if names[i] == name {
						found, err = strconv.ParseUint(v, 10, 64)
						return err
					}
				}
			}
		}
		return fmt.Errorf("there is no counter %s of %s", name, group)
	}))
	return found
}

func TestHandshakesThatTheKernelMakes(t *testing.T) {
	e := newCOEnv(t)
	must(t, e.co.Apply(COSetup{}, []COEndpoint{coEndpointOf(coVIP4, 80), coEndpointOf(coVIP4, 81), coEndpointOf(coVIP4, 82)}))
	e.serve(coVIP4, 80, true)
	e.serve(coVIP4, 81, false)
	before := e.counts(nil)
	look := e.watch(80)
	e.echo(e.dial(coVIP4, 80), 1000)
	if c := e.counts(before); c["pass_mptcp"] != 1 || c["answered"] != 0 {
		t.Errorf("of a server with MPTCP: counted %v", c)
	}
	for _, s := range look() {
		if s.stamped || !s.sack && s.flags == 0x12 {
			t.Errorf("what the kernel answers has timestamps, or lost other options: %+v", s)
		}
	}
	before, _ = e.co.Counters()
	var d net.Dialer
	if err := netdev.In(e.client, func() error {
		conn, err := d.Dial("tcp", coVIP4+":82")
		if err == nil {
			conn.Close()
		}
		return err
	}); err == nil {
		t.Error("a port without a server was connected")
	}
	if c := e.counts(before); c["pass_no_listener"] != 1 {
		t.Errorf("without a server: counted %v", c)
	}
	before, _ = e.co.Counters()
	must(t, netdev.SetSysctls(e.client, []netdev.Sysctl{{Key: "net/ipv4/tcp_timestamps", Value: "0"}}))
	e.echo(e.dial(coVIP4, 81), 1000)
	if c := e.counts(before); c["pass_no_time"] != 1 || c["answered"] != 0 {
		t.Errorf("of a client without timestamps: counted %v", c)
	}
	must(t, netdev.SetSysctls(e.client, []netdev.Sysctl{{Key: "net/ipv4/tcp_timestamps", Value: "1"}}))
	// A client that comes back with the same port while the server's side is in TIME-WAIT.
	must(t, e.co.Apply(COSetup{SACK: true, WindowScaling: true}, []COEndpoint{coEndpointOf(coVIP4, 83)}))
	e.closer(coVIP4, 83)
	for round, want := range []string{"answered", "pass_old", "pass_old"} {
		before, _ := e.co.Counters()
		look := e.watch(83)
		conn := e.dialFrom(coVIP4, 83, 45678)
		if b, err := io.ReadAll(conn); err != nil || string(b) != "bye" {
			t.Fatalf("connection %d: %q, %v", round, b, err)
		}
		conn.Close()
		if c := e.counts(before); c[want] != 1 {
			t.Errorf("connection %d: counted %v, want %s", round, c, want)
		}
		for _, s := range look() {
			if s.stamped != (round == 0) && s.flags&4 == 0 {
				t.Errorf("connection %d: a segment has %+v", round, s)
			}
		}
	}
	must(t, e.co.Apply(COSetup{}, []COEndpoint{coEndpointOf(coVIP4, 81)}))
	read := e.watch(81)
	e.echo(e.dial(coVIP4, 81), 100000)
	if f := read()[0]; f.sack || f.wscale != -1 {
		t.Errorf("offered %+v, which the server's namespace does not allow", f)
	}
}

// coFrame is a segment of the client's to the IPv4 VIP, port 80.
func coFrame(flags byte, seq, ack uint32, options, data []byte) []byte {
	for len(options)%4 != 0 {
		options = append(options, 1)
	}
	tcp := make([]byte, 20+len(options)+len(data))
	binary.BigEndian.PutUint16(tcp, 40000)
	binary.BigEndian.PutUint16(tcp[2:], 80)
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[12], tcp[13] = byte(20+len(options))/4<<4, flags
	copy(tcp[20:], options)
	copy(tcp[20+len(options):], data)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(tcp)))
	copy(ip[12:], netip.MustParseAddr(coClient4).AsSlice())
	copy(ip[16:], netip.MustParseAddr(coVIP4).AsSlice())
	pseudo := append(append([]byte{}, ip[12:20]...), 0, 6, byte(len(tcp)>>8), byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], ^coSum(append(pseudo, tcp...)))
	binary.BigEndian.PutUint16(ip[10:], ^coSum(ip))
	return append(append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}, ip...), tcp...)
}

func coSum(b []byte) uint16 {
	var sum uint32
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// coStamps is a timestamps option.
func coStamps(val, echo uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{8, 10}, val), echo)
}

// give runs the program on a frame of the server's uplink.
func (e *coEnv) give(frame []byte) (verdict int32, out []byte, counted map[string]uint64) {
	e.t.Helper()
	before, err := e.co.Counters()
	must(e.t, err)
	opts := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, 2048), Context: skbContext{Ifindex: uint32(linkIfindex(e.co.link))}}
	must(e.t, netdev.In(e.server, func() error {
		v, err := e.co.objects.HostCo.Run(opts)
		verdict = int32(v)
		return err
	}))
	return verdict, opts.DataOut, e.counts(before)
}

func TestHandshakeAnswersAndWhatIsWrong(t *testing.T) {
	const next, drop, redirect = -1, 2, 7
	e := newCOEnv(t)
	must(t, e.co.Apply(COSetup{SACK: true, WindowScaling: true}, []COEndpoint{coEndpointOf(coVIP4, 80)}))
	e.serve(coVIP4, 80, false)
	syn := append([]byte{2, 4, 5, 0xb4, 4, 2, 3, 3, 9}, coStamps(0x11223344, 0)...)
	before := nowMillis()
	verdict, out, counted := e.give(coFrame(2, 1000, 0, syn, nil))
	if verdict != redirect || len(out) != 14+20+40 || counted["answered"] != 1 {
		t.Fatalf("a SYN: verdict %d, %d bytes, counted %v", verdict, len(out), counted)
	}
	ip, tcp := out[14:34], out[34:]
	if coSum(ip) != 0xffff || coSum(append(append(append([]byte{}, ip[12:20]...), 0, 6, 0, 40), tcp...)) != 0xffff {
		t.Errorf("sums are wrong: %x", out)
	}
	if a := netip.AddrFrom4([4]byte(ip[12:])); a.String() != coVIP4 || netip.AddrFrom4([4]byte(ip[16:])).String() != coClient4 {
		t.Errorf("the answer goes from %s", a)
	}
	if got := fmt.Sprintf("%x", tcp[:4]); got != "00509c40" || binary.BigEndian.Uint32(tcp[8:]) != 1001 {
		t.Errorf("the answer's header is %x", tcp)
	}
	want := fmt.Sprintf("0204057804020 80a%08x11223344010303%02x", binary.BigEndian.Uint32(tcp[28:]), coWindowScale)
	if got := fmt.Sprintf("%x", tcp[20:]); got != strings.ReplaceAll(want, " ", "") {
		t.Errorf("options %s, want %s", got, want)
	}
	stamp, isn := binary.BigEndian.Uint32(tcp[28:]), binary.BigEndian.Uint32(tcp[4:])
	if age := before + 1000 - (stamp - uint32(cookie.OffsetCookie(stamp, before))<<cookie.OffsetTimeBits); age > 61_000 {
		t.Errorf("its clock is %d ms behind", age)
	}
	// A repetition is answered alike while the clock's unit lasts; another client is answered otherwise.
	if _, again, _ := e.give(coFrame(2, 1000, 0, syn, nil)); binary.BigEndian.Uint32(again[34+8:]) != 1001 {
		t.Errorf("a repetition is answered by %x", again)
	}
	for name, c := range map[string]struct {
		frame   []byte
		verdict int32
		counted string
	}{
		"an echo of another time":           {coFrame(16, 1001, isn+1, coStamps(1, stamp+1), nil), next, ""},
		"an echo with another cookie":       {coFrame(16, 1001, isn+1, coStamps(1, stamp^1<<25), nil), drop, "bad_echo"},
		"an echo with another key":          {coFrame(16, 1001, isn+1, coStamps(1, stamp^1<<31), nil), drop, "bad_echo"},
		"another acknowledgement":           {coFrame(16, 1001, isn+2, coStamps(1, stamp), nil), next, ""},
		"another sequence number":           {coFrame(16, 1002, isn+1, coStamps(1, stamp), nil), next, ""},
		"a RST":                             {coFrame(20, 1001, isn+1, coStamps(1, stamp), nil), next, ""},
		"no timestamps":                     {coFrame(16, 1001, isn+1, nil, nil), next, ""},
		"a SYN with FIN":                    {coFrame(3, 1000, 0, syn, nil), next, ""},
		"a SYN with an option of no length": {coFrame(2, 1000, 0, []byte{5, 0, 1, 1}, nil), drop, "malformed"},
		"a SYN with an option too long":     {coFrame(2, 1000, 0, []byte{8, 10, 1, 1}, nil), drop, "malformed"},
		"a SYN with small segments":         {coFrame(2, 1000, 0, append([]byte{2, 4, 2, 0}, coStamps(1, 0)...), nil), next, "pass_no_time"},
		"a SYN without timestamps":          {coFrame(2, 1000, 0, []byte{2, 4, 5, 0xb4}, nil), next, "pass_no_time"},
		"a SYN with data":                   {coFrame(2, 1000, 0, syn, []byte("hello")), drop, "no_room"},
	} {
		verdict, _, counted := e.give(c.frame)
		if verdict != c.verdict || (c.counted == "" && len(counted) != 0) || (c.counted != "" && counted[c.counted] != 1) {
			t.Errorf("%s: verdict %d, counted %v, want %d, %s", name, verdict, counted, c.verdict, c.counted)
		}
	}
}

func TestHandshakesOutliveTheAgent(t *testing.T) {
	e := newCOEnv(t)
	ep := coEndpointOf(coVIP4, 80)
	must(t, e.co.Apply(COSetup{SACK: true, WindowScaling: true}, []COEndpoint{ep}))
	e.serve(coVIP4, 80, false)
	key := e.co.setup[0].Key
	must(t, e.co.Close())
	e.echo(e.dial(coVIP4, 80), 1000)
	var err error
	must(t, netdev.In(e.server, func() error {
		e.co, err = e.host.OpenCO()
		return err
	}))
	if e.co.setup[0].Key != key || len(e.co.state) != 1 {
		t.Errorf("the next agent finds another key, or %d endpoints", len(e.co.state))
	}
	if c := e.counts(nil); c["accepted"] != 1 || c["answered"] != 1 {
		t.Errorf("without an agent: counted %v", c)
	}
	must(t, e.co.Apply(COSetup{}, nil))
	before, _ := e.co.Counters()
	e.echo(e.dial(coVIP4, 80), 1000)
	if c := e.counts(before); len(c) != 0 {
		t.Errorf("of an endpoint that went: counted %v", c)
	}
	bad := ep
	bad.Member = 2039
	if err := e.co.Apply(COSetup{}, []COEndpoint{bad}); err == nil || !strings.Contains(err.Error(), "member 2039: must be at most 2038") {
		t.Errorf("member 2039: %v", err)
	}
}

// TestHandshakesOfTunnelPackets gives host_in a SYN in a tunnel: it goes on to the program behind, also after the agent was replaced.
func TestHandshakesOfTunnelPackets(t *testing.T) {
	const next = -1
	e := newHostEnv(t)
	e.apply(bind(lb.TCP, owned4, host4, host4, false))
	frame := tunnel(t, source4, host4, packet{protocol: lb.TCP, src: client4, dst: owned4, sport: 40000, dport: 80}.bytes(t))
	if verdict, _ := e.run(e.host.objects.HostIn, frame); verdict != 0 {
		t.Fatalf("without the program: verdict %d", verdict)
	}
	var co *HostCO
	must(t, netdev.In(e.namespace, func() (err error) {
		co, err = e.host.OpenCO()
		return err
	}))
	defer co.Close()
	if verdict, _ := e.run(e.host.objects.HostIn, frame); verdict != next {
		t.Errorf("with the program: verdict %d", verdict)
	}
	e.host.Close()
	e.open()
	e.apply(bind(lb.TCP, owned4, host4, host4, false))
	if verdict, _ := e.run(e.host.objects.HostIn, frame); verdict != next {
		t.Errorf("with the next agent: verdict %d", verdict)
	}
}
