package lab_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/doctor"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/wire"
)

// plainServer is a server of the lab that is set up by docs/ops/plain-servers.md.
type plainServer struct {
	vm                         string
	vips                       []netip.Addr
	service                    string // the page's object
	config, script, guard, mss string // the page's blocks
	dir                        string // of the script and its configuration
	alternate                  *standIn
}

// blocks are the fenced blocks of a language in a page, in order.
func blocks(page, language string) []string {
	var out []string
	for i, block := range strings.Split("\n"+page, "\n```") {
		if of, text, found := strings.Cut(block, "\n"); i%2 == 1 && found && of == language {
			out = append(out, text+"\n")
		}
	}
	return out
}

// readPlainServer reads the page.
func readPlainServer(t *testing.T) *plainServer {
	t.Helper()
	text, err := os.ReadFile("../../docs/ops/plain-servers.md")
	if err != nil {
		t.Fatal(err)
	}
	sh, objects, tables := blocks(string(text), "sh"), blocks(string(text), "yaml"), blocks(string(text), "nft")
	if len(sh) != 3 || len(objects) != 1 || len(tables) != 2 {
		t.Fatalf("the page has %d blocks of sh, %d of yaml, %d of nft", len(sh), len(objects), len(tables))
	}
	v4, v6 := lab.VIPAddresses(130)
	p := &plainServer{
		vm: "host1-vm1", vips: []netip.Addr{v4, v6}, service: objects[0], config: sh[0], script: sh[1], guard: tables[0], mss: tables[1], dir: t.TempDir(),
	}
	if commands := "plain-server up\nshunt doctor --role server --interface eth0\n"; sh[2] != commands {
		t.Fatalf("the page's commands are %q, this test runs %q", sh[2], commands)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "plain-server"), []byte(p.script), 0o755); err != nil {
		t.Fatal(err)
	}
	if missing := tunnelsMissing(t); missing != nil {
		t.Logf("this kernel has no tunnel devices, programs stand in for shunt4 and shunt6: %v", missing)
		p.alternate = newStandIn(t, p.vm)
	}
	t.Cleanup(func() { p.run(t, "down") })
	p.wholePackets(t)
	// As strict as distributions are.
	p.set(t, "net/ipv4/ip_forward", "0")
	p.set(t, "net/ipv6/conf/all/forwarding", "0")
	p.set(t, "net/ipv4/conf/all/rp_filter", "1")
	t.Cleanup(func() { p.set(t, "net/ipv4/conf/all/rp_filter", "0") })
	return p
}

// wholePackets makes the server's link carry packets as they are on a wire: not several in one, and with their sums.
func (p *plainServer) wholePackets(t *testing.T) {
	t.Helper()
	host, err := netdev.OpenNamespace(shared.Topology.Name + "-host1")
	if err != nil {
		t.Fatal(err)
	}
	set := func(on bool) {
		if err := host.SetOffload("vm1", netdev.OffloadTxChecksum, on); err != nil {
			t.Error(err)
		}
	}
	set(false)
	t.Cleanup(func() {
		set(true)
		host.Close()
	})
}

// run runs the page's script on the server.
func (p *plainServer) run(t *testing.T, what string) {
	t.Helper()
	if p.alternate != nil {
		p.alternate.detach()
	}
	if out, err := p.command(filepath.Join(p.dir, "plain-server"), what); err != nil {
		t.Fatalf("plain-server %s: %v: %s", what, err, out)
	}
	if p.alternate == nil || what != "up" {
		return
	}
	vm, err := shared.Topology.Find(p.vm)
	if err != nil {
		t.Fatal(err)
	}
	gue := strings.Contains(p.config, "ENCAP=gue")
	p.alternate.attach(t, "shunt4", vm.Addresses().V4.Addr(), gue)
	p.alternate.attach(t, "shunt6", vm.Addresses().V6.Addr(), gue)
}

// up writes the configuration and sets the server up.
func (p *plainServer) up(t *testing.T, encap string) {
	t.Helper()
	line := "ENCAP=ipip "
	if !strings.Contains(p.config, line) && !strings.Contains(p.config, "ENCAP=gue ") {
		t.Fatalf("the page's configuration has no %q", line)
	}
	p.config = strings.ReplaceAll(strings.ReplaceAll(p.config, line, "ENCAP="+encap+" "), "ENCAP=gue ", "ENCAP="+encap+" ")
	if err := os.WriteFile(filepath.Join(p.dir, "config"), []byte(p.config), 0o644); err != nil {
		t.Fatal(err)
	}
	p.run(t, "up")
}

// command runs a command on the server.
func (p *plainServer) command(argv ...string) ([]byte, error) {
	path := os.Getenv("PATH")
	if p.alternate != nil {
		path = p.alternate.dir + ":" + path
	}
	var out []byte
	err := netdev.In(shared.Topology.Name+"-"+p.vm, func() (err error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "PATH="+path, "PLAIN_SERVER="+filepath.Join(p.dir, "config"))
		out, err = cmd.CombinedOutput()
		return err
	})
	return out, err
}

// doctor asks the doctor on the server for what is not in order, and whether it failed.
func (p *plainServer) doctor(t *testing.T, args ...string) (wrong []doctor.Result, failed bool) {
	t.Helper()
	argv := append([]string{program, "doctor", "--role", "server", "--interface", lab.Uplink, "-o", "json"}, args...)
	if p.alternate != nil {
		argv = append(argv, "--tunnel", "shunt4,shunt6")
	}
	out, err := p.command(argv...)
	exit := &exec.ExitError{}
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
	var all []doctor.Result
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
	for _, r := range all {
		if r.Status != doctor.OK {
			wrong = append(wrong, r)
		}
	}
	return wrong, err != nil
}

// A server without a host agent, set up exactly as the page says: it serves VIPs of both families over TCP and UDP, full segments arrive
// whole, and the doctor finds nothing to cure.
func TestPlainServer(t *testing.T) {
	logsOnFailure(t, shared)
	p := readPlainServer(t)
	if wrong, failed := p.doctor(t, "--vip", fmt.Sprintf("%s,%s", p.vips[0], p.vips[1])); !failed {
		t.Errorf("before, the doctor finds but this: %+v", wrong)
	}
	for i, encap := range []string{"gue", "ipip"} {
		p.up(t, encap)
		if encap == "ipip" || p.alternate == nil {
			args := map[string][]string{"ipip": nil, "gue": {"--encap", "gue"}}
			if wrong, failed := p.doctor(t, args[encap]...); failed || len(wrong) > 0 {
				t.Errorf("%s: the doctor finds %+v", encap, wrong)
			}
		}
		object := p.service
		if encap == "gue" {
			object = strings.Replace(object, "  rewrite: none\n", "  rewrite: none\n  encap: gue\n", 1)
		}
		s := service{name: "plain", number: 130, protocol: "any", backends: []string{p.vm}, text: object}
		s.apply(t)
		if i == 0 {
			s.awaitHops(t, shared.Topology.Muxes)
		}
		s.awaitAlive(t, 1)
		for _, vip := range p.vips {
			p.serves(t, vip)
		}
		p.fitsTunnel(t, encap)
	}
	p.asksInItsOwnName(t)
	p.set(t, "net/ipv4/conf/shunt4/rp_filter", "0")
	if wrong, failed := p.doctor(t); !failed || len(wrong) != 1 || wrong[0].Check != "rp_filter" {
		t.Errorf("with a strict filter the doctor finds %+v", wrong)
	}
	p.up(t, "ipip")
	runIP(t, shared.Topology.Name+"-"+p.vm, "-4", "addr", "flush", "dev", "shunt4")
	if wrong, failed := p.doctor(t); !failed || len(wrong) != 1 || wrong[0].Check != "rp_filter" {
		t.Errorf("without an address on the device the doctor finds %+v", wrong)
	}
}

// set changes a setting of the server's kernel.
func (p *plainServer) set(t *testing.T, key, value string) {
	t.Helper()
	if err := netdev.SetSysctls(shared.Topology.Name+"-"+p.vm, []netdev.Sysctl{{Key: key, Value: value}}); err != nil {
		t.Fatal(err)
	}
}

// serves: HTTP, echoes, and bytes in both directions.
func (p *plainServer) serves(t *testing.T, vip netip.Addr) {
	t.Helper()
	web, echo := netip.AddrPortFrom(vip, lab.ServerPort).String(), netip.AddrPortFrom(vip, lab.EchoPort).String()
	for range 10 {
		if who, err := get(web, "/"); err != nil || who != p.vm {
			t.Fatalf("%s: %q answers: %v", web, who, err)
		}
		echoOnce(t, "udp", echo, "a datagram to the VIP")
	}
}

// fitsTunnel: SYN-ACKs tell clients how much fits into the tunnel, uploads of just that size arrive in whole tunnel packets that nobody
// may cut, and downloads do not pass it.
func (p *plainServer) fitsTunnel(t *testing.T, encap string) {
	t.Helper()
	const size = 20_000_000
	inside := map[string]int{"ipip": 1500, "gue": 1500 - 24}[encap]
	for i, vip := range p.vips {
		header := []int{20, 40}[i]
		wantMSS := inside - 2*header - 20
		client, server := listen(t, "client1", lab.Uplink), listen(t, p.vm, lab.Uplink)
		check := &patternChecker{}
		web := netip.AddrPortFrom(vip, lab.ServerPort).String()
		if n, err := fetch(web, fmt.Sprintf("/bytes/%d", size), check); err != nil || n != size || check.bad {
			t.Errorf("%s: %d bytes of %d, wrong %v at %d: %v", web, n, size, check.bad, check.wrong, err)
		}
		for _, f := range client.those(synAckFrom(vip)) {
			h, err := wire.ParseFrame(f.data)
			if err != nil {
				t.Fatal(err)
			}
			if mss := optionMSS(h.Payload); mss != wantMSS {
				t.Errorf("%s, %s: a SYN-ACK says %d, want %d", encap, vip, mss, wantMSS)
			}
		}
		if len(client.those(synAckFrom(vip))) == 0 {
			t.Errorf("%s, %s: no SYN-ACK was seen", encap, vip)
		}
		p.upload(t, netip.AddrPortFrom(vip, lab.EchoPort).String(), size)
		largest := 0
		for _, f := range server.those(func(f frame) bool { return !f.out }) {
			h, err := wire.ParseFrame(f.data)
			if err != nil || h.Protocol != wire.ProtoIPIP && h.Protocol != wire.ProtoIPv6 && !(h.Protocol == wire.ProtoUDP && h.DstPort == 6080) {
				continue
			}
			largest = max(largest, len(h.Packet))
			inner := h.Payload
			if h.Protocol == wire.ProtoUDP {
				inner = inner[8+16:]
			}
			in, err := wire.Parse(inner)
			switch {
			case err != nil:
				t.Fatalf("%s, %s: a tunnel packet of %d bytes: %v", encap, vip, f.length, err)
			case h.Fragment() || in.Fragment():
				t.Fatalf("%s, %s: a packet was cut", encap, vip)
			case in.Protocol == wire.ProtoTCP && !in.V6 && in.Flags&0x4000 == 0:
				t.Fatalf("%s, %s: a segment may be cut", encap, vip)
			}
		}
		if largest != 1500 {
			t.Errorf("%s, %s: the largest tunnel packet had %d bytes, want 1500", encap, vip, largest)
		}
	}
}

// upload sends the pattern to an echo service and expects it back.
func (p *plainServer) upload(t *testing.T, target string, size int64) {
	t.Helper()
	conn, err := dial("tcp", target)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(conn, &patternReader{}, size)
		sent <- err
	}()
	check := &patternChecker{}
	n, err := io.CopyN(check, conn, size)
	if err := errors.Join(err, <-sent); err != nil || n != size || check.bad {
		t.Errorf("%s: %d bytes of %d came back, wrong %v at %d: %v", target, n, size, check.bad, check.wrong, err)
	}
}

// synAckFrom tells frames with a SYN-ACK from an address.
func synAckFrom(vip netip.Addr) func(frame) bool {
	return func(f frame) bool {
		h, err := wire.ParseFrame(f.data)
		return err == nil && h.Src == vip && h.Protocol == wire.ProtoTCP && h.Payload[13]&(wire.SYN|wire.ACK) == wire.SYN|wire.ACK
	}
}

// optionMSS is the MSS that a TCP header says, 0 without (RFC 9293 section 3.2).
func optionMSS(tcp []byte) int {
	options := tcp[20 : tcp[12]>>4*4]
	for len(options) >= 2 && options[0] != 0 {
		switch {
		case options[0] == 1:
			options = options[1:]
			continue
		case options[0] == 2 && len(options) >= 4:
			return int(binary.BigEndian.Uint16(options[2:]))
		}
		options = options[min(len(options), max(2, int(options[1]))):]
	}
	return 0
}

// asksInItsOwnName: the server neither answers ARP for its VIP nor asks in the VIP's name. Without the two settings it does both.
func (p *plainServer) asksInItsOwnName(t *testing.T) {
	t.Helper()
	namespace := shared.Topology.Name + "-" + p.vm
	vm, err := shared.Topology.Find(p.vm)
	if err != nil {
		t.Fatal(err)
	}
	dip, vip := vm.Addresses().V4.Addr(), p.vips[0]
	asker := netip.MustParseAddr("10.20.1.1")
	all := listen(t, p.vm, lab.Uplink)
	look := func(settings string) (asked, answered map[netip.Addr]bool) {
		all.forget()
		// Who says which address is whose, in what the server sends: an answer to the second question comes after one to the first.
		for _, of := range []netip.Addr{vip, dip} {
			sendFrame(t, "host1", "vm1", arpRequest(hardwareAddress(t, "host1", "vm1"), asker, of))
		}
		said := func(op byte) map[netip.Addr]bool {
			out := map[netip.Addr]bool{}
			for _, f := range all.those(func(f frame) bool {
				return f.out && f.kind() == unix.ETH_P_ARP && len(f.data) >= 42 && f.data[21] == op
			}) {
				out[netip.AddrFrom4([4]byte(f.data[28:32]))] = true
			}
			return out
		}
		await(t, "ARP of the server with "+settings, func(context.Context) error {
			// Whoever answers a client has to know its router's address.
			runIP(t, namespace, "neigh", "flush", "dev", lab.Uplink)
			if _, err := get(netip.AddrPortFrom(vip, lab.ServerPort).String(), "/"); err != nil {
				return err
			}
			if asked, answered = said(1), said(2); len(asked) == 0 || !answered[dip] {
				return fmt.Errorf("it asked in the name of %v and answered for %v", asked, answered)
			}
			return nil
		})
		return asked, answered
	}
	if asked, answered := look("the page's settings"); asked[vip] || answered[vip] {
		t.Errorf("the server asks in the name of %v and answers for %v", asked, answered)
	}
	set := func(ignore, announce string) {
		p.set(t, "net/ipv4/conf/"+lab.Uplink+"/arp_ignore", ignore)
		p.set(t, "net/ipv4/conf/"+lab.Uplink+"/arp_announce", announce)
	}
	set("0", "0")
	defer set("1", "2")
	if asked, answered := look("the kernel's settings"); !asked[vip] || !answered[vip] {
		t.Errorf("without the settings the server asks in the name of %v and answers for %v: this test can say nothing of them", asked, answered)
	}
	if wrong, failed := p.doctor(t); failed || len(wrong) != 2 || wrong[0].Check != "arp_ignore" || wrong[1].Check != "arp_announce" {
		t.Errorf("the doctor finds %+v", wrong)
	}
}

// arpRequest asks who has an address (RFC 826).
func arpRequest(from net.HardwareAddr, sender, target netip.Addr) []byte {
	f := bytes.Repeat([]byte{0xff}, 6)
	f = append(f, from...)
	f = append(f, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1)
	f = append(f, from...)
	f = append(f, sender.AsSlice()...)
	f = append(f, make([]byte, 6)...)
	return append(f, target.AsSlice()...)
}

// Tunnels of strangers are taken by the kernel's devices, and refused by the page's table for nftables.
func TestPlainServerRefusesStrangers(t *testing.T) {
	logsOnFailure(t, shared)
	p := readPlainServer(t)
	p.up(t, "ipip")
	vm, err := shared.Topology.Find(p.vm)
	if err != nil {
		t.Fatal(err)
	}
	client, err := shared.Topology.Find("client1")
	if err != nil {
		t.Fatal(err)
	}
	echoes := listen(t, "client1", lab.Uplink)
	t.Cleanup(func() { _, _ = p.command("nft", "delete table inet plain_server") }) // there is none when all went well
	for i, vip := range p.vips {
		from, dip := []netip.Addr{client.Addresses().V4.Addr(), client.Addresses().V6.Addr()}[i], []netip.Addr{vm.Addresses().V4.Addr(), vm.Addresses().V6.Addr()}[i]
		protocol, source := uint8(wire.ProtoIPIP), netip.MustParseAddr("100.64.7.7")
		if vip.Is6() {
			protocol, source = wire.ProtoIPv6, netip.MustParseAddr("fd53:6875:6e74::7:7")
		}
		send := func(outer netip.Addr, word string) {
			inner := wire.Packet{Src: from, Dst: vip, Payload: wire.UDP{SrcPort: 40000, DstPort: lab.EchoPort, Data: []byte(word)}}.IP()
			packet := wire.Packet{Src: outer, Dst: dip, Payload: wire.Raw{Number: protocol, Data: inner}}
			copy(packet.SrcMAC[:], hardwareAddress(t, "host1", "vm1"))
			copy(packet.DstMAC[:], hardwareAddress(t, p.vm, lab.Uplink))
			sendFrame(t, "host1", "vm1", packet.Frame())
		}
		echoed := func(word string) bool {
			return len(echoes.those(func(f frame) bool {
				h, err := wire.ParseFrame(f.data)
				return err == nil && h.Src == vip && h.Protocol == wire.ProtoUDP && bytes.HasSuffix(h.Packet, []byte(word))
			})) > 0
		}
		arrives := func(outer netip.Addr, word string) {
			t.Helper()
			await(t, "an echo of "+word, func(context.Context) error {
				send(outer, word)
				if !echoed(word) {
					return errors.New("none yet")
				}
				return nil
			})
		}
		arrives(from, fmt.Sprintf("a stranger's, %s", vip))
		p.tables(t, p.guard)
		lost := fmt.Sprintf("a refused one, %s", vip)
		send(from, lost)
		arrives(source, fmt.Sprintf("a mux's, %s", vip))
		if echoed(lost) {
			t.Errorf("%s: with the page's table a stranger's tunnel is taken", vip)
		}
		p.tables(t, "delete table inet plain_server")
	}
}

// The page's other way to make segments fit: nftables makes the MSS of SYN-ACKs smaller, and never larger.
func TestPlainServerClampsByTables(t *testing.T) {
	logsOnFailure(t, shared)
	p := readPlainServer(t)
	p.up(t, "ipip")
	namespace := shared.Topology.Name + "-" + p.vm
	for _, family := range []string{"-4", "-6"} {
		runIP(t, namespace, family, "rule", "del", "pref", "1053")
	}
	wrong, failed := p.doctor(t)
	if failed || len(wrong) != 2 || slices.ContainsFunc(wrong, func(r doctor.Result) bool { return r.Check != "mss" || r.Status != doctor.Warn }) {
		t.Errorf("without routes for answers the doctor finds %+v", wrong)
	}
	p.tables(t, p.mss)
	t.Cleanup(func() { p.tables(t, "delete table inet plain_server_mss") })
	s := service{name: "plain", number: 130, protocol: "any", backends: []string{p.vm}, text: p.service}
	s.up(t)
	for i, vip := range p.vips {
		client := listen(t, "client1", lab.Uplink)
		p.serves(t, vip)
		p.upload(t, netip.AddrPortFrom(vip, lab.EchoPort).String(), 1_000_000)
		acks := client.those(synAckFrom(vip))
		for _, f := range acks {
			h, err := wire.ParseFrame(f.data)
			if err != nil {
				t.Fatal(err)
			}
			if mss, want := optionMSS(h.Payload), []int{1440, 1400}[i]; mss != want {
				t.Errorf("%s: a SYN-ACK says %d, want %d", vip, mss, want)
			}
		}
		if len(acks) == 0 {
			t.Errorf("%s: no SYN-ACK was seen", vip)
		}
	}
}

// tables gives nftables of the server commands.
func (p *plainServer) tables(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(p.dir, "nft")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := p.command("nft", "-f", file); err != nil {
		t.Fatalf("nft: %v: %s\n%s", err, out, text)
	}
}

// The doctor finds each thing that is spoilt on a server that is otherwise as the page says, and its cure cures it.
func TestDoctorOfPlainServers(t *testing.T) {
	logsOnFailure(t, shared)
	p := readPlainServer(t)
	p.up(t, "ipip")
	vips := fmt.Sprintf("%s,%s", p.vips[0], p.vips[1])
	for _, c := range []struct {
		check  string
		status doctor.Status
		spoil  string
	}{
		{"vip", doctor.Fail, "ip addr del 203.0.113.130/32 dev lo"},
		{"vip", doctor.Fail, "ip addr del 2001:db8:f::130/128 dev lo"},
		{"vip", doctor.Fail, "ip addr del 203.0.113.130/32 dev lo && ip addr add 203.0.113.130/24 dev lo"},
		{"vip", doctor.Fail, "ip addr del 203.0.113.130/32 dev lo && ip addr add 203.0.113.130/32 dev eth0"},
		{"rp_filter", doctor.Fail, "echo 1 >/proc/sys/net/ipv4/conf/shunt4/rp_filter"},
		{"rp_filter", doctor.Fail, "ip addr del 10.20.1.11/32 dev shunt4"},
		{"arp_ignore", doctor.Warn, "echo 0 >/proc/sys/net/ipv4/conf/eth0/arp_ignore"},
		{"arp_announce", doctor.Warn, "echo 0 >/proc/sys/net/ipv4/conf/eth0/arp_announce"},
		{"mss", doctor.Warn, "ip -4 rule del pref 1053"},
		{"mss", doctor.Warn, "ip -6 rule del pref 1053"},
		{"route", doctor.Fail, "ip -4 route replace unreachable default table 1053"},
		{"ip_forward", doctor.Warn, "echo 1 >/proc/sys/net/ipv4/ip_forward"},
		{"ipv6 forwarding", doctor.Warn, "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"},
	} {
		if out, err := p.command("sh", "-c", c.spoil); err != nil {
			t.Fatalf("%s: %v: %s", c.spoil, err, out)
		}
		wrong, failed := p.doctor(t, "--vip", vips)
		if len(wrong) != 1 || wrong[0].Check != c.check || wrong[0].Status != c.status || failed != (c.status == doctor.Fail) {
			t.Errorf("after %s the doctor finds %+v", c.spoil, wrong)
		}
		if len(wrong) == 1 && c.check != "route" && c.check != "mss" {
			cure, _, _ := strings.Cut(wrong[0].Cure, ", unless")
			if out, err := p.command("sh", "-c", cure); err != nil {
				t.Errorf("%s: %v: %s", cure, err, out)
			}
			if wrong, failed := p.doctor(t, "--vip", vips); failed || len(wrong) > 0 {
				t.Errorf("after %s and its cure %s the doctor finds %+v", c.spoil, cure, wrong)
			}
		}
		p.up(t, "ipip")
		if wrong, failed := p.doctor(t, "--vip", vips); failed || len(wrong) > 0 {
			t.Fatalf("after the script the doctor finds %+v", wrong)
		}
	}
	// Neither device is there, nor anything else of the script.
	p.run(t, "down")
	wrong, _ := p.doctor(t, "--vip", vips)
	for _, check := range []string{"vip", "ipv4 tunnel", "ipv6 tunnel"} {
		if !slices.ContainsFunc(wrong, func(r doctor.Result) bool { return r.Check == check && r.Status == doctor.Fail }) {
			t.Errorf("without all the script does the doctor finds no fault of %s: %+v", check, wrong)
		}
	}
}
