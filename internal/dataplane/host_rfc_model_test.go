package dataplane

import "slices"

// rfcWindow is the receive window of the model's server, and the largest window that its client ever offered: what the programs take both for.
const rfcWindow = 1 << 20

// rfcSegment is a segment with its numbers as they are on the wire.
type rfcSegment struct {
	seq, acked         uint32
	syn, ack, fin, rst bool
	length             int
}

// rfcServer is the server's side of a connection by RFC 9293 section 3.10.7.4 and RFC 5961 sections 3 to 5. Its numbers count from the initial ones
// and never wrap: the initial number of each side is 0.
type rfcServer struct {
	iss, irs    uint32 // on the wire
	established bool
	una, nxt    int64 // SND.UNA and SND.NXT
	rcv         int64 // RCV.NXT
	acked       int64 // the last acknowledgement that it sent
	early       []rfcSpan
	fin         int64 // the number of the client's FIN, wherever it is; 0: there is none
	gotFIN      bool  // RCV.NXT is behind it
	sentFIN     bool
	reset       bool // by a RST that it accepted
}

// rfcSpan are octets that came before those in front of them: from is the first one, to the one after the last.
type rfcSpan struct{ from, to int64 }

// rfcFate is what the server does with a segment of its client.
type rfcFate struct {
	accepted bool // its text, FIN and acknowledgement are processed
	reset    bool // it ends the connection
	answers  bool // an acknowledgement goes back: the segment is not acceptable, or a challenge (RFC 5961)
	refuses  bool // a RST goes back with the number that the segment acknowledges; the connection stays
	opens    bool // the connection becomes established
}

// relative is a number on the wire as the one nearest to `near` that it can stand for.
func relative(wire, initial uint32, near int64) int64 {
	return near + int64(int32(wire-initial-uint32(near)))
}

// octets are the number of the segment's first octet and the one after its last, a FIN included.
func (s *rfcServer) octets(g rfcSegment) (first, end int64) {
	first = relative(g.seq, s.irs, s.rcv)
	end = first + int64(g.length)
	if g.fin {
		end++
	}
	return first, end
}

// edge is the first number behind the receive window. It moves when the server acknowledges: octets that came since the last acknowledgement take room of
// the window that was announced (RFC 9293 section 3.8.6; Linux: tcp_receive_window).
func (s *rfcServer) edge() int64 { return s.acked + rfcWindow }

// acceptable is the first check of RFC 9293 section 3.10.7.4, with a window that is never 0.
func (s *rfcServer) acceptable(first, end int64) bool {
	within := func(n int64) bool { return s.rcv <= n && n < s.edge() }
	if first == end {
		return within(first)
	}
	return within(first) || within(end-1)
}

// take is what the server does with a segment of its client, after its SYN-ACK.
func (s *rfcServer) take(g rfcSegment) (fate rfcFate) {
	first, end := s.octets(g)
	if g.rst { // RFC 5961 section 3.2
		switch {
		case first == s.rcv:
			s.reset = true
			return rfcFate{reset: true}
		case s.rcv < first && first < s.edge():
			return rfcFate{answers: true}
		}
		return rfcFate{}
	}
	if g.syn { // RFC 5961 section 4.2
		return rfcFate{answers: true}
	}
	if !s.acceptable(first, end) {
		return rfcFate{answers: true}
	}
	if !g.ack {
		return rfcFate{}
	}
	acked := relative(g.acked, s.iss, s.una)
	if !s.established {
		if acked <= s.una || acked > s.nxt {
			return rfcFate{refuses: true}
		}
		s.established, fate.opens = true, true
	} else if acked < s.una-rfcWindow || acked > s.nxt { // RFC 5961 section 5.2
		return rfcFate{answers: true}
	}
	s.una = max(s.una, acked)
	fate.accepted = true
	s.text(first, end, g.fin)
	return fate
}

// text puts octets in their place, and moves RCV.NXT over those that are there.
func (s *rfcServer) text(first, end int64, fin bool) {
	if fin && s.fin == 0 {
		s.fin = end - 1
	}
	if s.gotFIN || first == end {
		return
	}
	s.early = append(s.early, rfcSpan{max(first, s.rcv), min(end, s.edge())})
	for moved := true; moved; {
		moved = false
		for _, span := range s.early {
			if span.from <= s.rcv && s.rcv < span.to {
				s.rcv, moved = span.to, true
			}
		}
	}
	s.early = slices.DeleteFunc(s.early, func(span rfcSpan) bool { return span.to <= s.rcv })
	s.gotFIN = s.fin != 0 && s.rcv > s.fin
}

// beyondFIN says whether octets came that are behind the client's FIN.
func (s *rfcServer) beyondFIN() bool {
	return s.fin != 0 && (s.rcv > s.fin+1 || slices.ContainsFunc(s.early, func(span rfcSpan) bool { return span.to > s.fin+1 }))
}

// over says whether the connection has ended.
func (s *rfcServer) over() bool { return s.reset || s.gotFIN && s.sentFIN }

// acks is an acknowledgement of all that came.
func (s *rfcServer) acks() rfcSegment {
	s.acked = s.rcv
	return rfcSegment{seq: s.iss + uint32(s.nxt), acked: s.irs + uint32(s.rcv), ack: true}
}

// sends is a segment with so many octets, and with a FIN if it says so.
func (s *rfcServer) sends(length int, fin bool) rfcSegment {
	g := s.acks()
	g.length, g.fin = length, fin
	s.nxt += int64(length)
	if fin {
		s.nxt, s.sentFIN = s.nxt+1, true
	}
	return g
}
