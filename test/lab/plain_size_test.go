package lab_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/doctor"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/wire"
)

// fitsTunnel checks that the MSS in SYN-ACKs fits into the tunnel, that uploads of exactly that
// size arrive in unfragmented tunnel packets with DF, and that downloads bypass the tunnel.
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

// synAckFrom matches frames with a SYN-ACK from an address.
func synAckFrom(vip netip.Addr) func(frame) bool {
	return func(f frame) bool {
		h, err := wire.ParseFrame(f.data)
		return err == nil && h.Src == vip && h.Protocol == wire.ProtoTCP && h.Payload[13]&(wire.SYN|wire.ACK) == wire.SYN|wire.ACK
	}
}

// optionMSS returns the MSS option of a TCP header, or 0 without one (RFC 9293 section 3.2).
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

// The page's alternative way to make segments fit: nftables reduces the MSS of SYN-ACKs, and never
// increases it.
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

// tables runs nftables commands on the server.
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
