package lab_test

import (
	"strings"
	"testing"
)

// TestQUICSwitchedOff changes protocol quic with affinity cookie to udp under clients that
// download, migrate and rebind, at servers to which the ring maps none of them. No download breaks
// or changes its server. New connections work.
func TestQUICSwitchedOff(t *testing.T) {
	logsOnFailure(t, shared)
	s := quicService("quic-off", 181, "{format: quiclb}", "host1-vm1", "host2-vm1", "host3-vm1")
	s.more += "  scheduler: round-robin\n"
	s.up(t)
	for _, vm := range s.backends {
		s.serveQUIC(t, vm)
	}
	movers := startMovers(t, s, "0")
	tell(t, movers, "moved", func(int) string { return "move" })
	off := s
	off.as, off.more = "", strings.Replace(s.more, "  quic: {format: quiclb}\n", "  affinity: flow\n", 1)
	off.apply(t)
	off.awaitHops(t, shared.Topology.Muxes)
	for i := range 6 {
		tell(t, movers, "moved", func(n int) string {
			if n%2 == 1 && i%3 == 2 {
				return "rebind"
			}
			return "move"
		})
	}
	off.spreads(t)
	tell(t, movers, "ended", func(int) string { return "end" })
}
