package lab_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/wire"
)

// oddLayouts are valid options in layouts that no kernel sends.
var oddLayouts = []struct {
	name string
	of   layout
}{
	{"usual", usualLayout},
	{"timestamps after SACK", func(syn bool, now, echo uint32, _ []byte) []byte {
		if syn {
			return bytes.Join([][]byte{optionSACKAllowed, optionSize, optionStamps(now, echo)}, nil)
		}
		// The SACK block is of data acknowledged long ago.
		return bytes.Join([][]byte{optionNOP, optionNOP, optionSACK(make([]byte, 8)), optionStamps(now, echo)}, nil)
	}},
	{"at an odd offset", func(syn bool, now, echo uint32, blocks []byte) []byte {
		if syn {
			return bytes.Join([][]byte{optionNOP, optionSize, optionSACKAllowed, optionStamps(now, echo)}, nil)
		}
		return bytes.Join([][]byte{optionNOP, optionStamps(now, echo), optionSACK(blocks)}, nil)
	}},
	{"behind three NOPs", func(syn bool, now, echo uint32, _ []byte) []byte {
		if syn {
			return usualLayout(syn, now, echo, nil)
		}
		return bytes.Join([][]byte{optionNOP, optionNOP, optionNOP, optionStamps(now, echo)}, nil)
	}},
	{"an end, and something behind it", func(syn bool, now, echo uint32, _ []byte) []byte {
		out := optionStamps(now, echo)
		if syn {
			out = append(bytes.Clone(optionSize), out...)
		}
		return append(append(out, optionEnd...), 8, 1, 5, 0, 8)
	}},
	{"other lengths than theirs before", func(syn bool, now, echo uint32, _ []byte) []byte {
		if syn {
			return usualLayout(syn, now, echo, nil)
		}
		return bytes.Join([][]byte{{8, 6, 0xff, 0xff, 0xff, 0xff}, {8, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, optionStamps(now, echo)}, nil)
	}},
}

// lyingOptions are options with a wrong length.
func lyingOptions(now, echo uint32) map[string][]byte {
	stamps := optionStamps(now, echo)
	return map[string][]byte{
		"length 0 behind timestamps":          append(bytes.Clone(stamps), 30, 0),
		"length 1 behind timestamps":          append(bytes.Clone(stamps), 30, 1),
		"beyond the header behind timestamps": append(bytes.Clone(stamps), 30, 3),
		"timestamps of length 0":              {1, 1, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 1, 1},
		"timestamps of length 1":              {1, 1, 8, 1, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 1, 1},
		"timestamps beyond the header":        {1, 1, 8, 10, 1, 2, 3, 4},
		"a length that is not there":          {1, 1, 1, 8},
	}
}

// oddOptions is T11: a client with options in unusual order is served by its server, by its cookie.
// Segments with a wrong option length go nowhere, and harm no connection.
func (s *stacks) oddOptions(t *testing.T) {
	absent, invalid, lies := countOf(t.Context(), t, "mux", "cookie_absent"), countOf(t.Context(), t, "mux", "cookie_invalid"), countOf(t.Context(), t, "mux", "tcp_bad_option")
	lying, plain := 0, 0
	for _, target := range s.both.targets() {
		for _, odd := range oddLayouts {
			h, err := openHandmade(t, target, odd.of)
			fails(t, err, "%s, %s", target, odd.name)
			if err == nil {
				fails(t, s.asks(h), "%s, %s", target, odd.name)
				plain += h.plain
			}
		}
		fails(t, s.threeBlocks(t, target), "%s, three SACK blocks", target)
		n, err := s.lies(t, target)
		fails(t, err, "%s, lying lengths", target)
		lying += n
		h, err := openHandmade(t, target, func(syn bool, _, _ uint32, _ []byte) []byte {
			if syn {
				return optionSize
			}
			return nil
		})
		fails(t, err, "%s, without timestamps", target)
		if err == nil {
			fails(t, s.asks(h), "%s, without timestamps", target)
			plain += h.plain
		}
	}
	for reason, want := range map[string]uint64{"cookie_absent": absent + uint64(plain), "tcp_bad_option": lies + uint64(lying)} {
		await(t, reason+" on muxes", func(ctx context.Context) error {
			if got := countOf(ctx, t, "mux", reason); got != want {
				return fmt.Errorf("%d, want %d", got, want)
			}
			return nil
		})
	}
	if got := countOf(t.Context(), t, "mux", "cookie_invalid"); got != invalid {
		t.Errorf("%d cookies were none", got-invalid)
	}
}

// asks requests small and large pages. All must come from one server.
func (s *stacks) asks(h *handmade) error {
	first := ""
	for range 5 {
		name, err := h.name()
		if first == "" {
			first = name
		}
		if err != nil || name != first {
			return fmt.Errorf("%q after %q: %w", name, first, err)
		}
		body, err := h.ask("/pattern", 0, "Range: bytes=0-29999")
		if err != nil {
			return err
		}
		if err := isPattern(body, 30_000); err != nil {
			return err
		}
	}
	if h.refused > 0 {
		return fmt.Errorf("%d segments had old timestamps", h.refused)
	}
	return nil
}

// isPattern returns an error unless a body is the beginning of /pattern.
func isPattern(body string, length int) error {
	if len(body) != length {
		return fmt.Errorf("%d bytes, want %d", len(body), length)
	}
	for i := range body {
		if body[i] != lab.PatternByte(int64(i)) {
			return fmt.Errorf("byte %d is wrong", i)
		}
	}
	return nil
}

// threeBlocks drops parts of the received data, so that three SACK blocks follow the timestamps of
// its acknowledgements.
func (s *stacks) threeBlocks(t *testing.T, target string) error {
	most := 0
	h, err := openHandmade(t, target, func(syn bool, now, echo uint32, blocks []byte) []byte {
		most = max(most, len(blocks)/8)
		return usualLayout(syn, now, echo, blocks)
	})
	if err != nil {
		return err
	}
	for range 3 {
		h.losesAt = 7 * handmadePart
		body, err := h.ask("/pattern", 0, "Range: bytes=0-29999")
		if err != nil {
			return err
		}
		if err := isPattern(body, 30_000); err != nil {
			return err
		}
	}
	if most != 3 || h.refused > 0 {
		return fmt.Errorf("%d SACK blocks at most, %d segments with old timestamps", most, h.refused)
	}
	return s.asks(h)
}

// lies sends requests with wrong option lengths, each several times, and returns their number. None
// may reach a server.
func (s *stacks) lies(t *testing.T, target string) (sent int, err error) {
	h, err := openHandmade(t, target, usualLayout)
	if err != nil {
		return 0, err
	}
	if err := s.asks(h); err != nil {
		return 0, err
	}
	const times = 3
	usual := h.window
	h.window = markedWindow
	for what, options := range lyingOptions(h.now(), h.recent) {
		for range times {
			if err := h.send(h.seq, wire.ACK|wire.PSH, options, h.request("/")); err != nil {
				return sent, fmt.Errorf("%s: %w", what, err)
			}
			sent++
		}
	}
	h.window = usual
	if err := s.asks(h); err != nil { // after them on the same path
		return sent, err
	}
	for vm := range s.servers {
		if n := s.marked(vm, h.port, markedWindow); n > 0 {
			return sent, fmt.Errorf("%d came to %s", n, vm)
		}
	}
	return sent, nil
}

// markedWindow is the first window of marked segments.
const markedWindow = 50_000

// marked returns how many segments from a port reached a server with a window.
func (s *stacks) marked(vm string, port, window uint16) int {
	return len(s.servers[vm].those(func(f frame) bool {
		tcp := f.tcpOf()
		return tcp != nil && binary.BigEndian.Uint16(tcp) == port && binary.BigEndian.Uint16(tcp[14:]) == window
	}))
}

// The position of a cookie in a timestamp.
const cookieFirstBit, cookieBits = 15, 16

// changedBits is T14: segments that are valid except for one changed bit of their cookie. They
// match a server only by chance: one in 16,000 at a mux of two servers. All others go where a
// segment without cookie would, to the server in the flow table, whichever bit it is. So an
// attacker who changes bits cannot choose a server. The connection continues.
func (s *stacks) changedBits(t *testing.T) {
	const each, luck = 4, 2 // of 128 tries, more come once in ten million runs
	invalid := countOf(t.Context(), t, "mux", "cookie_invalid")
	at := map[*handmade]string{}
	for _, target := range s.both.targets() {
		for range each {
			h, err := openHandmade(t, target, usualLayout)
			if err != nil {
				t.Fatalf("%s: %v", target, err)
			}
			at[h], err = h.name()
			fails(t, err, "%s", target)
			usual := h.window
			for bit := range cookieBits {
				h.window = markedWindow + uint16(bit)
				fails(t, h.send(h.seq, wire.ACK, usualLayout(false, h.now(), h.recent^1<<(cookieFirstBit+bit), nil), nil), "%s, bit %d", target, bit)
			}
			h.window = usual
			again, err := h.name()
			if errors.Is(err, errReset) && s.changedAt(h, "", at[h]) > 0 {
				continue // by a server that it reached by chance
			}
			if err != nil || again != at[h] {
				t.Errorf("%s: after changed bits %q, before %q: %v", target, again, at[h], err)
			}
			fails(t, s.asks(h), "%s: after changed bits", target)
		}
	}
	sent, astray := cookieBits*len(at), 0
	await(t, "segments with changed bits at servers", func(context.Context) error {
		came := 0
		astray = 0
		for h, own := range at {
			came += s.changedAt(h, own, "")
			astray += s.changedAt(h, "", own)
		}
		if came+astray != sent {
			return fmt.Errorf("%d and %d of %d", came, astray, sent)
		}
		return nil
	})
	if astray > luck {
		t.Errorf("of %d segments with a changed bit %d came to other servers", sent, astray)
	}
	await(t, "cookie_invalid on muxes", func(ctx context.Context) error {
		if got := countOf(ctx, t, "mux", "cookie_invalid") - invalid; got > uint64(sent) || got+luck < uint64(sent) {
			return fmt.Errorf("%d of %d", got, sent)
		}
		return nil
	})
}

// changedAt returns how many segments with a changed bit reached one server, or all servers, except
// one.
func (s *stacks) changedAt(h *handmade, one, but string) (n int) {
	for vm := range s.servers {
		for bit := range cookieBits {
			if vm != but && (one == "" || vm == one) {
				n += s.marked(vm, h.port, markedWindow+uint16(bit))
			}
		}
	}
	return n
}

// strict is T13: a client that refuses every timestamp older than the last one, however long ago
// that was, exchanges data with its server after a silence.
func (s *stacks) strict(t *testing.T) {
	const half = (1 << 15) * time.Millisecond
	var all sync.WaitGroup
	for _, silent := range []time.Duration{time.Second, half / 2, half - 1e6, half + 1e6, 2*half - 1e6, 2*half + 1e6, 70 * time.Second} {
		for _, target := range append(s.plain[vmUsual].targets(), s.plain[vmClock].targets()...) {
			server, err := openHandmade(t, target, usualLayout)
			if err != nil {
				t.Fatalf("%s: %v", target, err)
			}
			client, err := openHandmade(t, target, usualLayout)
			if err != nil {
				t.Fatalf("%s: %v", target, err)
			}
			all.Go(func() {
				body, err := server.ask("/push?after="+silent.String(), silent)
				if err == nil && len(strings.Fields(body)) != 2 {
					err = fmt.Errorf("pushed was %q", body)
				}
				fails(t, err, "%s: a push of the server after %s", target, silent)
				fails(t, s.asks(server), "%s: after the push after %s", target, silent)
			})
			all.Go(func() {
				fails(t, s.asks(client), "%s: before %s of silence", target, silent)
				time.Sleep(silent) // the silence under test
				fails(t, s.asks(client), "%s: the client after %s", target, silent)
			})
		}
	}
	all.Wait()
}
