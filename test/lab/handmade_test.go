package lab_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/wire"
)

// handmade is the client's end of a TCP connection that no kernel handles. Its IP and Ethernet
// addresses belong to no machine. They are behind the uplink of client1.
type handmade struct {
	fd     int
	packet wire.Packet
	port   uint16
	to     uint16
	begun  time.Time
	layout layout
	window uint16 // without scale

	seq, ack uint32 // the next to send, and the next that is expected
	lastAck  uint32 // that was sent (RFC 7323: Last.ACK.sent)
	stamps   bool   // timestamps are agreed on
	recent   uint32 // TS.Recent
	refused  int    // segments with a timestamp older than that
	plain    int    // segments after the SYN that were sent without timestamps
	ahead    []part // data received beyond ack, at most three parts
	// losesAt is the number of bytes, seven parts or more, that are held until parts of them are
	// dropped. 0 means none.
	losesAt int
	held    []byte
	in      []byte // received data that was not read
}

// part is data that begins at a sequence number.
type part struct {
	at   uint32
	data []byte
}

// segment is a received segment.
type segment struct {
	flags       byte
	seq, ack    uint32
	stamp, echo uint32
	stamped     bool
	data        []byte
}

// layout makes the options of a segment. For segments other than a SYN, blocks holds the data
// received beyond the acknowledged one, as SACK blocks (RFC 2018).
type layout func(syn bool, now, echo uint32, blocks []byte) []byte

// Options that layouts are made of.
var (
	optionNOP         = []byte{1}
	optionEnd         = []byte{0}
	optionSize        = []byte{2, 4, 1000 >> 8, 1000 & 0xff}
	optionSACKAllowed = []byte{4, 2}
)

const (
	// handmadePart is the data size of segments with timestamps, by the announced MSS.
	handmadePart = 1000 - 12
	// handmadePatience bounds every wait without a bound of its own.
	handmadePatience = time.Minute
	// handmadeAgain is the retransmission timeout.
	handmadeAgain = 400 * time.Millisecond
)

func optionStamps(now, echo uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{8, 10}, now), echo)
}

// optionSACK returns an option with the blocks, or none without blocks.
func optionSACK(blocks []byte) []byte {
	if len(blocks) == 0 {
		return nil
	}
	return append([]byte{5, byte(2 + len(blocks))}, blocks...)
}

// usualLayout is the layout of Linux: two NOPs before timestamps, two before blocks.
func usualLayout(syn bool, now, echo uint32, blocks []byte) []byte {
	if syn {
		return bytes.Join([][]byte{optionSize, optionSACKAllowed, optionStamps(now, echo)}, nil)
	}
	out := bytes.Join([][]byte{optionNOP, optionNOP, optionStamps(now, echo)}, nil)
	if len(blocks) > 0 {
		out = bytes.Join([][]byte{out, optionNOP, optionNOP, optionSACK(blocks)}, nil)
	}
	return out
}

// errReset is the error after a RST.
var errReset = errors.New("the connection was reset")

// handmadeMAC is the Ethernet address of all of them.
var handmadeMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0xf0}

// handmadeAddresses are their addresses, beyond those of all clients.
var handmadeAddresses = [2]netip.Addr{netip.MustParseAddr("198.51.100.240"), netip.MustParseAddr("2001:db8:100::240")}

// knowHandmade adds neighbor entries for the addresses at the router, until the test ends.
func knowHandmade(t *testing.T) {
	t.Helper()
	for _, a := range handmadeAddresses {
		runIP(t, inNode("router1"), "neigh", "replace", a.String(), "lladdr", handmadeMAC.String(), "dev", "clients", "nud", "permanent")
		t.Cleanup(func() { runIP(t, inNode("router1"), "neigh", "del", a.String(), "dev", "clients") })
	}
}

// openHandmade connects to a target.
func openHandmade(t *testing.T, target string, l layout) (*handmade, error) {
	t.Helper()
	to := netip.MustParseAddrPort(target)
	h := &handmade{port: uint16(freshPort()), to: to.Port(), begun: time.Now(), layout: l, window: 60_000, seq: 1 << 20}
	h.packet = wire.Packet{Src: handmadeAddresses[0], Dst: to.Addr()}
	if to.Addr().Is6() {
		h.packet.Src = handmadeAddresses[1]
	}
	copy(h.packet.SrcMAC[:], handmadeMAC)
	copy(h.packet.DstMAC[:], hardwareAddress(t, "router1", "clients"))
	if err := h.listen(); err != nil {
		return nil, err
	}
	t.Cleanup(func() { unix.Close(h.fd) })
	return h, h.connect()
}

// listen opens the socket for its segments.
func (h *handmade) listen() error {
	// The last word of the destination's address, and the port.
	kind, address, port, last := uint32(unix.ETH_P_IP), uint32(30), uint32(36), h.packet.Src.As16()
	if h.packet.Src.Is6() {
		kind, address, port = unix.ETH_P_IPV6, 50, 56
	}
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: kind, SkipTrue: 5},
		bpf.LoadAbsolute{Off: address, Size: 4}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(last[12:]), SkipTrue: 3},
		bpf.LoadAbsolute{Off: port, Size: 2}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(h.port), SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 17}, bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	program := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		program[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	return netdev.In(client1(), func() error {
		i, err := net.InterfaceByName(lab.Uplink)
		if err != nil {
			return err
		}
		if h.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return errors.Join(
			unix.SetsockoptSockFprog(h.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}),
			unix.SetsockoptTimeval(h.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
			unix.Bind(h.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}))
	})
}

// now returns the client's clock, in milliseconds. It passes the value where the sign of a
// difference changes.
func (h *handmade) now() uint32 { return 1<<31 - 1000 + uint32(time.Since(h.begun).Milliseconds()) }

// options returns the options of its next segment.
func (h *handmade) options(syn bool) []byte {
	var blocks []byte
	for _, p := range h.ahead {
		blocks = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(blocks, p.at), p.at+uint32(len(p.data)))
	}
	return h.layout(syn, h.now(), h.recent, blocks)
}

// send sends a segment at a sequence number.
func (h *handmade) send(at uint32, flags byte, options, data []byte) error {
	if flags&wire.SYN == 0 {
		if _, _, ok := stampsIn(options); !ok {
			h.plain++
		}
		h.lastAck = h.ack
	}
	p := h.packet
	p.Payload = wire.TCP{SrcPort: h.port, DstPort: h.to, Seq: at, Ack: h.ack, Flags: flags, Window: h.window, Options: options, Data: data}
	_, err := unix.Write(h.fd, p.Frame())
	return err
}

// acknowledge acknowledges the received data.
func (h *handmade) acknowledge() error { return h.send(h.seq, wire.ACK, h.options(false), nil) }

// stampsIn finds timestamps among options.
func stampsIn(o []byte) (stamp, echo uint32, ok bool) {
	for len(o) > 1 && o[0] != 0 {
		switch {
		case o[0] == 1:
			o = o[1:]
			continue
		case o[0] == 8 && o[1] == 10 && len(o) >= 10:
			return binary.BigEndian.Uint32(o[2:]), binary.BigEndian.Uint32(o[6:]), true
		}
		o = o[min(len(o), max(2, int(o[1]))):]
	}
	return 0, 0, false
}

// receive returns the next segment that arrives before a time, or nil.
func (h *handmade) receive(until time.Time) (*segment, error) {
	buf := make([]byte, 1<<17)
	for time.Now().Before(until) {
		n, _, err := unix.Recvfrom(h.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		one, err := wire.ParseFrame(buf[:n])
		if err != nil || one.Protocol != wire.ProtoTCP || len(one.Payload) < 20 || one.SrcPort != h.to {
			continue
		}
		tcp := one.Payload
		head := int(tcp[12]>>4) * 4
		s := &segment{flags: tcp[13], seq: binary.BigEndian.Uint32(tcp[4:]), ack: binary.BigEndian.Uint32(tcp[8:]), data: tcp[head:]}
		s.stamp, s.echo, s.stamped = stampsIn(tcp[20:head])
		return s, nil
	}
	return nil, nil
}

// connect makes the handshake.
func (h *handmade) connect() error {
	syn := h.options(true)
	for until := time.Now().Add(handmadePatience); time.Now().Before(until); {
		if err := h.send(h.seq, wire.SYN, syn, nil); err != nil {
			return err
		}
		s, err := h.receive(time.Now().Add(time.Second))
		switch {
		case err != nil:
			return err
		case s == nil || s.flags != wire.SYN|wire.ACK || s.ack != h.seq+1:
			continue
		}
		_, _, asked := stampsIn(syn)
		if h.stamps = s.stamped; h.stamps != asked {
			return fmt.Errorf("timestamps are asked for: %v, agreed on: %v", asked, h.stamps)
		}
		h.seq, h.ack, h.recent = h.seq+1, s.seq+1, s.stamp
		return h.acknowledge()
	}
	return errors.New("no SYN-ACK came")
}

// take processes a segment by RFC 9293, and by RFC 7323 section 5.3 without exception for idle
// connections.
func (h *handmade) take(s *segment) error {
	if s.flags&wire.RST != 0 {
		return errReset
	}
	if h.stamps && !s.stamped {
		return errors.New("a segment came without timestamps")
	}
	if h.stamps && int32(s.stamp-h.recent) < 0 {
		h.refused++
		return h.acknowledge()
	}
	if h.stamps && int32(s.seq-h.lastAck) <= 0 {
		h.recent = s.stamp
	}
	if len(s.data) == 0 && s.flags&(wire.FIN|wire.SYN) == 0 {
		return nil
	}
	if h.losesAt > 0 {
		if !h.lose(part{s.seq, s.data}) {
			return nil
		}
		return h.acknowledge()
	}
	h.collect(part{s.seq, bytes.Clone(s.data)})
	if s.flags&wire.FIN != 0 && s.seq+uint32(len(s.data)) == h.ack {
		h.ack++
	}
	return h.acknowledge()
}

// lose holds data until it has losesAt bytes. Then it drops all but four parts of them. The first
// of these is in sequence.
func (h *handmade) lose(p part) bool {
	if p.at != h.ack+uint32(len(h.held)) {
		if int32(p.at-h.ack) > 0 || len(h.held) == 0 {
			return false
		}
		// The server retransmits its first part: it has sent all that its window allows.
		// Acknowledge the held data and start holding again.
		held := h.held
		h.held = nil
		h.collect(part{h.ack, held})
		return true
	}
	if h.held = append(h.held, p.data...); len(h.held) < h.losesAt {
		return false
	}
	held, first := h.held, h.ack
	h.losesAt, h.held = 0, nil
	h.collect(part{first, held[:handmadePart]})
	for i := 2; i <= 6; i += 2 {
		h.ahead = append(h.ahead, part{first + uint32(i*handmadePart), held[i*handmadePart : (i+1)*handmadePart]})
	}
	return true
}

// collect appends a part that is in sequence.
func (h *handmade) collect(p part) {
	if past := h.ack - p.at; int32(past) > 0 {
		p.at, p.data = h.ack, p.data[min(int(past), len(p.data)):]
	}
	if p.at != h.ack {
		return // the server sends it again
	}
	h.in, h.ack = append(h.in, p.data...), h.ack+uint32(len(p.data))
	for i := 0; i < len(h.ahead); {
		if int32(h.ahead[i].at-h.ack) > 0 {
			i++
			continue
		}
		p := h.ahead[i]
		h.ahead = append(h.ahead[:i], h.ahead[i+1:]...)
		h.collect(p)
		i = 0
	}
}

// name requests the name of the server.
func (h *handmade) name() (string, error) {
	body, err := h.ask("/", 0)
	return strings.TrimSpace(body), err
}

// ask requests a page and returns the body of the response. It waits for besides longer than usual.
func (h *handmade) ask(path string, besides time.Duration, headers ...string) (string, error) {
	return h.talk(h.request(path, headers...), besides)
}

// request returns the text of a request.
func (h *handmade) request(path string, headers ...string) []byte {
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: lab\r\n%s\r\n", path, strings.Join(append(headers, ""), "\r\n"))
}

// talk sends a request, retransmits it until it is acknowledged, and reads the response.
func (h *handmade) talk(request []byte, besides time.Duration) (string, error) {
	at := h.seq
	h.seq += uint32(len(request))
	again := time.Now()
	for until := time.Now().Add(besides + handmadePatience); time.Now().Before(until); {
		if int32(at-h.seq) < 0 && !time.Now().Before(again) {
			if err := h.send(at, wire.ACK|wire.PSH, h.options(false), request); err != nil {
				return "", err
			}
			again = time.Now().Add(handmadeAgain)
		}
		wake := until
		if int32(at-h.seq) < 0 {
			wake = again
		}
		s, err := h.receive(wake)
		if err != nil {
			return "", err
		}
		if s == nil {
			continue
		}
		if err := h.take(s); err != nil {
			return "", err
		}
		if s.ack == h.seq {
			at = h.seq
		}
		if body, whole, err := h.answer(); whole || err != nil {
			return body, err
		}
	}
	return "", fmt.Errorf("no whole answer came, but %q", h.in)
}

// answer returns the body of a response, if it is complete.
func (h *handmade) answer() (body string, whole bool, err error) {
	rest := bytes.NewReader(h.in)
	buffered := bufio.NewReader(rest)
	answer, err := http.ReadResponse(buffered, nil)
	if err != nil {
		return "", false, nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", false, nil
	}
	h.in = h.in[len(h.in)-rest.Len()-buffered.Buffered():]
	if answer.StatusCode/100 != 2 {
		return "", true, errors.New(answer.Status)
	}
	return string(text), true, nil
}
