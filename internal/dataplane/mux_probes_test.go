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
	good := ProbeRule{Peer: netip.AddrPortFrom(probeServer4, 80), Local: probeLocal4, Request: probeText}
	for want, change := range map[string]func(*ProbeRule) uint32{
		"address: must have a port":         func(r *ProbeRule) uint32 { r.Peer = netip.AddrPortFrom(probeServer4, 0); return 0 },
		"must be an address of the same":    func(r *ProbeRule) uint32 { r.Local = probeLocal6; return 0 },
		"request: 1025 bytes: must be at":   func(r *ProbeRule) uint32 { r.Request = make([]byte, 1025); return 0 },
		"outer headers: 20 and 0 bytes":     func(r *ProbeRule) uint32 { r.Outer = make([]byte, 20); return 0 },
		"number 4: at most 4 probes":        func(*ProbeRule) uint32 { return 4 },
		"no room for 600 bytes: 8 lines of": func(r *ProbeRule) uint32 { r.Request = make([]byte, 600); return 0 },
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
