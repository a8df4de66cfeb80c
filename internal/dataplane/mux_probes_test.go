package dataplane

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestProbeRulesAreChecked: a rule that cannot be made leaves none behind, and no text held.
func TestProbeRulesAreChecked(t *testing.T) {
	f := NewFakeProbes(4)
	f.texts = newTextStore(make([]muxProbeText, 8))
	good := ProbeRule{Peer: netip.AddrPortFrom(probeServer4, 80), Local: probeLocal4, Request: probeText}
	for want, change := range map[string]func(*ProbeRule) uint32{
		"address: must have a port":         func(r *ProbeRule) uint32 { r.Peer = netip.AddrPortFrom(probeServer4, 0); return 0 },
		"must be an address of the same":    func(r *ProbeRule) uint32 { r.Local = probeLocal6; return 0 },
		"request: 1025 bytes: must be at":   func(r *ProbeRule) uint32 { r.Request = make([]byte, 1025); return 0 },
		"outer headers: 21 bytes":           func(r *ProbeRule) uint32 { r.Outer = make([]byte, 21); return 0 },
		"number 4: at most 4 probes":        func(*ProbeRule) uint32 { return 4 },
		"no room for 536 bytes: 8 lines of": func(r *ProbeRule) uint32 { r.Request = make([]byte, 600); return 0 },
	} {
		r := good
		if err := f.Put(change(&r), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if f.texts.room.used != 0 {
		t.Errorf("%d lines are held", f.texts.room.used)
	}
}

// TestTextStoreHoldsEachTextOnce compares with a map of texts.
func TestTextStoreHoldsEachTextOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newTextStore(make([]muxProbeText, rapid.IntRange(1, 100).Draw(t, "lines")))
		type held struct {
			t     text
			bytes string
		}
		var all []held
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(all) > 0 && rapid.Bool().Draw(t, "release") {
				i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
				s.release(all[i].t)
				all = slices.Delete(all, i, i+1)
			} else {
				b := bytes.Repeat([]byte{byte(rapid.IntRange(1, 5).Draw(t, "letter"))}, rapid.IntRange(0, 300).Draw(t, "length"))
				if x, err := s.hold(b); err == nil {
					all = append(all, held{x, string(b)})
				}
			}
			distinct := map[string]uint32{}
			for _, h := range all {
				var got []byte
				for i := range uint32((len(h.bytes) + 63) / 64) {
					got = append(got, s.lines[h.t.first+i].Bytes[:]...)
				}
				if want := append([]byte(h.bytes), make([]byte, len(got)-len(h.bytes))...); !bytes.Equal(got, want) {
					t.Fatalf("text %q reads %x", h.bytes, got)
				}
				if h.bytes != "" {
					distinct[h.bytes] = s.blockOf(h.t).words
				}
			}
			var words uint32
			for _, n := range distinct {
				words += n
			}
			if s.room.used != words {
				t.Fatalf("%d lines in use, %d held", s.room.used, words)
			}
		}
	})
}

// TestProbesOfManyServersFit: each rule whose request has its server's address as the host takes one line, each with outer headers of
// its own one, and a rule that ends gives back what it had.
func TestProbesOfManyServersFit(t *testing.T) {
	const rules = 1024
	f := NewFakeProbes(rules)
	at := func(i uint32) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 10_000)
	}
	direct := func(i uint32) ProbeRule {
		return ProbeRule{Peer: at(i), Local: probeLocal4, Request: []byte("GET /healthz HTTP/1.1\r\nHost: " + at(i).String() +
			"\r\nUser-Agent: shunt\r\nAccept: */*\r\nConnection: close\r\n\r\n")}
	}
	tunnelled := func(i uint32) ProbeRule {
		r := direct(7)
		var err error
		r.Outer, err = Tunnel{Outer: at(i).Addr(), Encap: EncapGUE, Sources: sources, Hash: uint64(i)}.Header(true, 40)
		must(t, err)
		return r
	}
	for name, of := range map[string]func(uint32) ProbeRule{"direct": direct, "through tunnels": tunnelled} {
		for round := range 2 {
			for i := range uint32(rules) {
				if err := f.Put(i, of(i)); err != nil {
					t.Fatalf("%s, round %d, rule %d: %v", name, round, i, err)
				}
			}
		}
		if used := f.texts.room.used; used < rules || used > rules+8 {
			t.Errorf("%s: %d rules take %d lines", name, rules, used)
		}
		for i := range uint32(rules) {
			f.Remove(i)
			f.Remove(i)
		}
		if used := f.texts.room.used; used != 0 {
			t.Errorf("%s: %d lines are held of no rule", name, used)
		}
	}
}
