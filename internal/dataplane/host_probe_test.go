package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/wire"
)

// Verdicts of tcx programs.
const (
	tcxNext     = -1
	tcxDrop     = 2
	tcxRedirect = 7
)

var (
	probeHostMAC   = [6]byte{2, 0, 0, 0, 0, 1}
	probeServerMAC = [6]byte{2, 0, 0, 0, 0, 2}
)

// hostProbeRig is a host with one probe, number 7, in a round.
type hostProbeRig struct {
	*hostEnv
	probes *HostProbes
	rule   ProbeRule
	isn    uint32
	number uint32
}

// hostProbeRules are rules of both families.
func hostProbeRules(request []byte) map[string]ProbeRule {
	return map[string]ProbeRule{
		"IPv4": {Peer: netip.AddrPortFrom(netip.MustParseAddr(dip4), 8080), Local: netip.MustParseAddr(host4), Request: request},
		"IPv6": {Peer: netip.AddrPortFrom(netip.MustParseAddr(dip6), 8080), Local: netip.MustParseAddr(host6), Request: request},
	}
}

// newHostProbeRig begins a round of a rule, whose device is vm0. Nothing but run shows packets to the program.
func newHostProbeRig(t *testing.T, r ProbeRule) *hostProbeRig {
	t.Helper()
	e := newHostEnv(t)
	e.testClock = true
	must(t, e.host.Close())
	e.open()
	e.quiet()
	rig := &hostProbeRig{hostEnv: e, rule: r, number: 7}
	var err error
	rig.probes, err = e.host.OpenProbes(64)
	must(t, err)
	t.Cleanup(func() { must(t, rig.probes.Close()) })
	must(t, rig.probes.objects.HostProbeNow.Set(uint64(probeTime)))
	rig.rule.Hop = NextHop{MAC: probeServerMAC, Ifindex: rig.device("vm0")}
	must(t, netdev.In(e.namespace, func() error {
		_, err := rig.probes.Follow([]int{rig.rule.Hop.Ifindex})
		return err
	}))
	must(t, rig.probes.Put(rig.number, rig.rule))
	_, err = rig.probes.Follow(nil)
	must(t, err)
	rig.begin(probeISN)
	return rig
}

// device is the index of one of the host's devices.
func (e *hostEnv) device(name string) (ifindex int) {
	e.t.Helper()
	must(e.t, netdev.In(e.namespace, func() error {
		i, err := netdev.FindInterface(name)
		ifindex = i.Index
		return err
	}))
	return ifindex
}

func (r *hostProbeRig) begin(random uint32) {
	r.isn = r.probes.Key().ISN(r.number) | random
	r.probes.Begin(r.number, r.isn, probePort)
}

// again begins a fresh round, after which nothing is known.
func (r *hostProbeRig) again() {
	r.begin(probeISN ^ 1)
	r.begin(probeISN)
}

// packet is one of the server.
func (r *hostProbeRig) packet(seg wire.TCP) wire.Packet {
	seg.SrcPort = r.rule.Peer.Port()
	if seg.DstPort == 0 {
		seg.DstPort = probePort
	}
	return wire.Packet{DstMAC: probeHostMAC, SrcMAC: probeServerMAC, Src: r.rule.Peer.Addr(), Dst: r.rule.Local, Payload: seg}
}

// sent is the frame of a segment to the server.
func (r *hostProbeRig) sent(seg wire.TCP) []byte {
	seg.SrcPort, seg.DstPort, seg.Window = probePort, r.rule.Peer.Port(), ProbeWindow
	p := wire.Packet{DstMAC: probeServerMAC, SrcMAC: probeHostMAC, Src: r.rule.Local, Dst: r.rule.Peer.Addr(), Payload: seg}
	if p.Src.Is4() {
		p.Flags = 0x4000
	}
	return p.Frame()
}

// expect runs a frame: its verdict, what leaves, the one reason that is counted ("" none), and the result.
func (r *hostProbeRig) expect(name string, frame []byte, verdict int32, out []byte, reason string, want ProbeResult) {
	r.t.Helper()
	c, err := r.host.Counters()
	must(r.t, err)
	gotVerdict, gotOut := r.run(r.probes.objects.HostProbe, frame)
	if gotVerdict != verdict || !bytes.Equal(gotOut, out) {
		r.t.Fatalf("%s: got verdict %d, frame\n%x\nwant verdict %d, frame\n%x", name, gotVerdict, gotOut, verdict, out)
	}
	counted := map[string]uint64{}
	if reason != "" {
		counted[reason] = 1
	}
	if got := r.reasons(c.Reasons); fmt.Sprint(got) != fmt.Sprint(counted) {
		r.t.Fatalf("%s: counted %v, want %v", name, got, counted)
	}
	if want.State != ProbeSilent {
		want.Time = probeTime
	}
	if got := r.probes.Result(r.number, r.isn); got != want {
		r.t.Fatalf("%s: result %+v, want %+v", name, got, want)
	}
}

func TestHostProbeTCP(t *testing.T) {
	for name, rule := range hostProbeRules(nil) {
		t.Run(name, func(t *testing.T) {
			r := newHostProbeRig(t, rule)
			synAck := r.packet(wire.TCP{Seq: 1e9, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK, Options: []byte{2, 4, 5, 180, 1, 1, 4, 2}})
			rst := r.sent(wire.TCP{Seq: r.isn + 1, Flags: wire.RST})
			answered := ProbeResult{State: ProbeAnswered}
			r.expect("SYN-ACK", synAck.Frame(), tcxRedirect, rst, "probe_ended", answered)
			r.expect("SYN-ACK again", synAck.Frame(), tcxRedirect, rst, "probe_ended", answered)
			r.again()
			refusal := r.packet(wire.TCP{Ack: r.isn + 1, Flags: wire.RST | wire.ACK, DstPort: probePort + 3}).Frame()
			refused := ProbeResult{State: ProbeRefused, Attempt: 3}
			r.expect("RST", refusal, tcxDrop, refusal, "probe_reset", refused)
			r.expect("SYN-ACK after all", synAck.Frame(), tcxRedirect, rst, "probe_ended", refused)
		})
	}
}

func TestHostProbeHTTP(t *testing.T) {
	for name, rule := range hostProbeRules(probeText) {
		t.Run(name, func(t *testing.T) {
			r := newHostProbeRig(t, rule)
			behind := r.isn + 1 + uint32(len(probeText))
			synAck := r.packet(wire.TCP{Seq: 0xffffffff, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK, Options: []byte{2, 4, 5, 180}}).Frame()
			request := r.sent(wire.TCP{Seq: r.isn + 1, Ack: 0, Flags: wire.ACK | wire.PSH, Data: probeText})
			rst := r.sent(wire.TCP{Seq: behind, Flags: wire.RST})
			answer := func(data string, flags uint8) []byte {
				return r.packet(wire.TCP{Ack: behind, Flags: wire.ACK | flags, Data: []byte(data)}).Frame()
			}
			connected := ProbeResult{State: ProbeConnected}
			ended := func(name, data string, flags uint8, want ProbeResult) {
				t.Helper()
				r.expect(name, answer(data, flags), tcxRedirect, rst, "probe_ended", want)
				r.again()
			}
			r.expect("SYN-ACK", synAck, tcxRedirect, request, "probe_asked", connected)
			r.expect("SYN-ACK again", synAck, tcxRedirect, request, "probe_asked", connected)
			pure := answer("", 0)
			r.expect("pure ACK", pure, tcxDrop, pure, "probe_ignored", connected)
			r.expect("200", answer("HTTP/1.1 200 OK\r\n", wire.PSH), tcxRedirect, rst, "probe_ended", ProbeResult{State: ProbeStatus, Status: 200})
			r.expect("another answer", answer("HTTP/1.1 503 No\r\n", wire.FIN), tcxRedirect, rst, "probe_ended", ProbeResult{State: ProbeStatus, Status: 200})
			ackBeyond := r.packet(wire.TCP{Ack: behind, Flags: wire.ACK | wire.SYN}).Frame()
			r.expect("SYN-ACK of the request", ackBeyond, tcxDrop, ackBeyond, "probe_ignored", ProbeResult{State: ProbeStatus, Status: 200})
			r.again()
			ended("500 with a body", "HTTP/1.0 500 No\r\n\r\n"+strings.Repeat("x", 1400), wire.PSH, ProbeResult{State: ProbeStatus, Status: 500})
			ended("no status line", "SSH-2.0-OpenSSH\r\n", wire.PSH, ProbeResult{State: ProbeOdd})
			ended("half a status line", "HTTP/1.1 20", wire.PSH, ProbeResult{State: ProbeOdd})
			ended("interim answer", "HTTP/1.1 100 Continue\r\n\r\n", wire.PSH, ProbeResult{State: ProbeOdd})
			ended("FIN", "", wire.FIN, ProbeResult{State: ProbeClosed})
			reset := r.packet(wire.TCP{Ack: behind, Flags: wire.RST | wire.ACK}).Frame()
			r.expect("RST later", reset, tcxDrop, reset, "probe_reset", ProbeResult{State: ProbeBroken})
			r.again()
			r.expect("SYN-ACK", synAck, tcxRedirect, request, "probe_asked", connected)
			reset = r.packet(wire.TCP{Ack: r.isn + 1, Flags: wire.RST | wire.ACK}).Frame()
			r.expect("RST of a connection that there was", reset, tcxDrop, reset, "probe_reset", ProbeResult{State: ProbeBroken})
		})
	}
}

// TestHostProbeTakesNothingElse: whatever is not of the round goes on untouched and uncounted, and changes nothing.
func TestHostProbeTakesNothingElse(t *testing.T) {
	for name, rule := range hostProbeRules(probeText) {
		t.Run(name, func(t *testing.T) {
			r := newHostProbeRig(t, rule)
			with := func(change func(*wire.Packet, *wire.TCP)) []byte {
				p := r.packet(wire.TCP{Seq: 7, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK})
				seg := p.Payload.(wire.TCP)
				change(&p, &seg)
				if _, tcp := p.Payload.(wire.TCP); tcp {
					p.Payload = seg
				}
				return p.Frame()
			}
			raw := func(change func([]byte) []byte) []byte {
				return with(func(p *wire.Packet, s *wire.TCP) {
					p.Payload = wire.Raw{Number: wire.ProtoTCP, Data: change(s.Bytes(p.Src, p.Dst))}
				})
			}
			frames := map[string][]byte{
				"forged ISN, random part": with(func(_ *wire.Packet, s *wire.TCP) { s.Ack++ }),
				"below the ISN":           with(func(_ *wire.Packet, s *wire.TCP) { s.Ack-- }),
				"forged ISN, number":      with(func(_ *wire.Packet, s *wire.TCP) { s.Ack += 1 << 12 }),
				"beyond the rules":        with(func(_ *wire.Packet, s *wire.TCP) { s.Ack ^= 1 << 31 }),
				"within the request":      with(func(_ *wire.Packet, s *wire.TCP) { s.Ack += uint32(len(probeText)) - 1 }),
				"beyond the request":      with(func(_ *wire.Packet, s *wire.TCP) { s.Ack += uint32(len(probeText)) + 1 }),
				"stale round":             with(func(_ *wire.Packet, s *wire.TCP) { s.Ack ^= 1 << 5 }),
				"wrong source":            with(func(p *wire.Packet, _ *wire.TCP) { p.Src = p.Src.Next() }),
				"to a client":             with(func(p *wire.Packet, _ *wire.TCP) { p.Dst = p.Dst.Next() }),
				"wrong source port":       with(func(_ *wire.Packet, s *wire.TCP) { s.SrcPort++ }),
				"port below the round's":  with(func(_ *wire.Packet, s *wire.TCP) { s.DstPort-- }),
				"port above the round's":  with(func(_ *wire.Packet, s *wire.TCP) { s.DstPort += 4 }),
				"port of no probe":        with(func(_ *wire.Packet, s *wire.TCP) { s.DstPort = 60000 }),
				"no ACK":                  with(func(_ *wire.Packet, s *wire.TCP) { s.Flags = wire.SYN }),
				"RST without ACK":         with(func(_ *wire.Packet, s *wire.TCP) { s.Flags = wire.RST }),
				"data of a client": with(func(_ *wire.Packet, s *wire.TCP) {
					s.Ack, s.Flags, s.Data = 0x01020304, wire.ACK|wire.PSH, bytes.Repeat([]byte("data"), 300)
				}),
				"UDP": with(func(p *wire.Packet, s *wire.TCP) {
					p.Payload = wire.UDP{SrcPort: s.SrcPort, DstPort: s.DstPort, Data: make([]byte, 20)}
				}),
				"ping":                      with(func(p *wire.Packet, _ *wire.TCP) { p.Payload = wire.Echo{ID: 1} }),
				"truncated":                 raw(func(b []byte) []byte { return b[:19] }),
				"data offset 4":             raw(func(b []byte) []byte { b[12] = 0x40; return b }),
				"header beyond the segment": raw(func(b []byte) []byte { b[12] = 0x60; return b }),
			}
			good := with(func(*wire.Packet, *wire.TCP) {})
			frames["tagged"] = tagged(good, 0x81000064)
			frames["not IP"] = slices.Concat(good[:12], []byte{0x08, 0x06}, good[14:])
			long := slices.Clone(good)
			if rule.Local.Is4() {
				long[17]++
				options := slices.Concat(good[:34], []byte{1, 1, 1, 0}, good[34:])
				options[14], options[17] = 0x46, options[17]+4
				options[24], options[25] = 0, 0
				binary.BigEndian.PutUint16(options[24:], wire.Checksum(options[14:38]))
				frames["IPv4 options"] = options
				sum := slices.Clone(good)
				sum[24]++
				frames["header checksum"] = sum
				fragment := slices.Clone(good)
				fragment[20], fragment[24], fragment[25] = 0x20, 0, 0
				binary.BigEndian.PutUint16(fragment[24:], wire.Checksum(fragment[14:34]))
				frames["fragment"] = fragment
			} else {
				long[19]++
			}
			frames["length beyond the frame"] = long
			for name, frame := range frames {
				r.expect(name, frame, tcxNext, frame, "", ProbeResult{})
			}
			// The same frame is taken while the round lasts: what changed in the others is what kept them.
			request := r.sent(wire.TCP{Seq: r.isn + 1, Ack: 8, Flags: wire.ACK | wire.PSH, Data: probeText})
			r.expect("the server's own", good, tcxRedirect, request, "probe_asked", ProbeResult{State: ProbeConnected})
			r.again()
			r.probes.End(r.number)
			r.expect("after the round", good, tcxNext, good, "", ProbeResult{})
		})
	}
}

// TestHostProbeAnswersInOddForms: padding, extension headers and long requests change nothing.
func TestHostProbeAnswersInOddForms(t *testing.T) {
	for name, rule := range hostProbeRules(bytes.Repeat([]byte("x"), ProbeRequestMax)) {
		t.Run(name, func(t *testing.T) {
			r := newHostProbeRig(t, rule)
			request := r.sent(wire.TCP{Seq: r.isn + 1, Ack: 8, Flags: wire.ACK | wire.PSH, Data: rule.Request})
			synAck := r.packet(wire.TCP{Seq: 7, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK})
			connected := ProbeResult{State: ProbeConnected}
			r.expect("longest request", synAck.Frame(), tcxRedirect, request, "probe_asked", connected)
			padded := synAck
			padded.Padding = 6
			r.expect("padded", padded.Frame(), tcxRedirect, request, "probe_asked", connected)
			if rule.Local.Is6() {
				padded.Extensions = []wire.Extension{wire.Options(wire.ProtoHopByHop, 1), wire.Options(wire.ProtoDstOpts, 3)}
				r.expect("extension headers", padded.Frame(), tcxRedirect, request, "probe_asked", connected)
			}
			// What nobody may have stands for a kernel without memory.
			r.again()
			r.probes.rules[r.number].RequestLen = 65000
			rst := r.sent(wire.TCP{Seq: r.isn + 1, Flags: wire.RST})
			r.expect("no room", synAck.Frame(), tcxRedirect, rst, "probe_no_room", ProbeResult{State: ProbeStuck})
		})
	}
}

// TestHostProbeUnreachable: an ICMP error counts that quotes the round's SYN, and nothing else.
func TestHostProbeUnreachable(t *testing.T) {
	for name, rule := range hostProbeRules(probeText) {
		t.Run(name, func(t *testing.T) {
			r := newHostProbeRig(t, rule)
			kind, code, tooBig, protocol, router := byte(3), byte(1), [2]byte{3, 4}, uint8(wire.ProtoICMP), netip.MustParseAddr(router4)
			if rule.Local.Is6() {
				kind, code, tooBig, protocol, router = 1, 3, [2]byte{2, 0}, wire.ProtoICMPv6, netip.MustParseAddr(router6)
			}
			quote := func(seq uint32, change func(*wire.Packet, *wire.TCP)) []byte {
				s := wire.TCP{SrcPort: probePort + 1, DstPort: rule.Peer.Port(), Seq: seq, Flags: wire.SYN}
				p := wire.Packet{Src: rule.Local, Dst: rule.Peer.Addr(), Payload: s}
				change(&p, &s)
				p.Payload = s
				return p.IP()
			}
			to := rule.Local
			message := func(kind, code byte, quoted []byte) []byte {
				data := append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, quoted...)
				return wire.Packet{DstMAC: probeHostMAC, SrcMAC: probeServerMAC, Src: router, Dst: to, Payload: wire.Raw{Number: protocol, Data: data}}.Frame()
			}
			none := func(*wire.Packet, *wire.TCP) {}
			pass := func(name string, frame []byte) {
				t.Helper()
				r.expect(name, frame, tcxNext, frame, "", ProbeResult{})
			}
			pass("packet too big", message(tooBig[0], tooBig[1], quote(r.isn, none)))
			pass("time exceeded", message(map[bool]byte{true: 11, false: 3}[rule.Local.Is4()], 0, quote(r.isn, none)))
			pass("another sequence number", message(kind, code, quote(r.isn+1, none)))
			pass("another server", message(kind, code, quote(r.isn, func(p *wire.Packet, _ *wire.TCP) { p.Dst = p.Dst.Next() })))
			pass("another sender", message(kind, code, quote(r.isn, func(p *wire.Packet, _ *wire.TCP) { p.Src = p.Src.Next() })))
			pass("another port", message(kind, code, quote(r.isn, func(_ *wire.Packet, s *wire.TCP) { s.SrcPort += 3 })))
			pass("too short a quote", message(kind, code, quote(r.isn, none)[:27]))
			pass("nothing quoted", message(kind, code, nil))
			to = to.Next()
			pass("to somebody else", message(kind, code, quote(r.isn, none)))
			to = rule.Local
			frame := message(kind, code, quote(r.isn, none))
			r.expect("unreachable", frame, tcxDrop, frame, "probe_unreachable", ProbeResult{State: ProbeUnreachable, Attempt: 1})
			synAck := r.packet(wire.TCP{Seq: 7, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK}).Frame()
			request := r.sent(wire.TCP{Seq: r.isn + 1, Ack: 8, Flags: wire.ACK | wire.PSH, Data: probeText})
			r.expect("SYN-ACK after all", synAck, tcxRedirect, request, "probe_asked", ProbeResult{State: ProbeConnected})
		})
	}
}

// programsOn are the names of the programs on the ingress of a device, the first first.
func (e *hostEnv) programsOn(ifindex int) (names []string) {
	e.t.Helper()
	must(e.t, netdev.In(e.namespace, func() error {
		result, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		for _, p := range result.Programs {
			name, err := ProgramName(uint32(p.ID))
			if err != nil {
				return err
			}
			names = append(names, name)
		}
		return nil
	}))
	return names
}

// TestHostProbesFollowDevices: the program is the first of each device that is wanted and on no other; other programs stay, and rules
// lead out of such devices only.
func TestHostProbesFollowDevices(t *testing.T) {
	e := newHostEnv(t)
	for _, rules := range []uint32{0, 100, 1 << 19} {
		if _, err := e.host.OpenProbes(rules); err == nil || !strings.Contains(err.Error(), "must be a multiple of 64 up to 262144") {
			t.Errorf("%d rules: %v", rules, err)
		}
	}
	p, err := e.host.OpenProbes(64)
	must(t, err)
	vm0, nm0 := e.device("vm0"), e.device("nm0")
	follow := func(devices ...int) (on []int, err error) {
		must(t, netdev.In(e.namespace, func() error {
			on, err = p.Follow(devices)
			return nil
		}))
		return on, err
	}
	expect := func(when string, device int, want ...string) {
		t.Helper()
		if got := e.programsOn(device); !slices.Equal(got, want) {
			t.Errorf("%s: programs are %v, want %v", when, got, want)
		}
	}
	foreign, err := probeProgram(ebpf.SchedCLS, tcxNext)
	must(t, err)
	defer foreign.Close()
	must(t, netdev.In(e.namespace, func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: vm0, Program: foreign, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}))
	info, err := foreign.Info()
	must(t, err)
	rule := hostProbeRules(nil)["IPv4"]
	put := func(when string, hop NextHop, want string) {
		t.Helper()
		rule.Hop = hop
		if err := p.Put(1, rule); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", when, err, want)
		}
	}
	const nowhere = "does not lead out of a device of servers"
	put("before", NextHop{Ifindex: vm0}, nowhere)
	if on, err := follow(vm0, nm0); err != nil || !slices.Equal(on, slices.Sorted(slices.Values([]int{vm0, nm0}))) {
		t.Fatalf("on %v: %v", on, err)
	}
	expect("both", vm0, "host_probe", info.Name)
	expect("both", nm0, "host_probe")
	put("by a device", NextHop{Ifindex: vm0}, "")
	put("by a VLAN on it", NextHop{Ifindex: vm0, Tag: 0x81000064}, nowhere)
	if on, err := follow(nm0, 1<<20); !slices.Equal(on, []int{nm0}) || err == nil || !strings.Contains(err.Error(), "interface 1048576") {
		t.Errorf("on %v: %v, want an error about the device that there is not", on, err)
	}
	expect("one", vm0, info.Name)
	expect("one", nm0, "host_probe")
	put("by the device before", NextHop{Ifindex: vm0}, nowhere)
	must(t, netdev.In(e.namespace, func() error { return exec.Command("ip", "link", "delete", "nm0").Run() }))
	if on, err := follow(vm0); err != nil || !slices.Equal(on, []int{vm0}) {
		t.Errorf("after a device went: on %v: %v", on, err)
	}
	must(t, p.Close())
	expect("closed", vm0, info.Name)
}
