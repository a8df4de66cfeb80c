package dataplane

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/shuntlb/shunt/internal/lb"
)

// rawOptions makes the options of a segment these bytes, whatever they say, and its checksum right.
func rawOptions(ip, options []byte) []byte {
	at := 20
	if ip[0]>>4 == 6 {
		at = 40
	}
	tcp := ip[at:]
	copy(tcp[20:], options)
	tcp[16], tcp[17] = 0, 0
	sum := uint32(len(tcp)) + 6
	add := func(b []byte) {
		for i := range b {
			sum += uint32(b[i]) << (8 * (1 - i%2))
		}
	}
	if at == 20 {
		add(ip[12:20])
	} else {
		add(ip[8:40])
	}
	add(tcp)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	tcp[16], tcp[17] = byte(^sum>>8), byte(^sum)
	return ip
}

// TestHostCookieOptions is T11: wherever the option lies it is found, at odd offsets too; what lies about itself, or is signed, is left as it is.
func TestHostCookieOptions(t *testing.T) {
	e := newCookieEnv(t)
	ts := func(v, r uint32) []byte {
		return []byte{8, 10, byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v), byte(r >> 24), byte(r >> 16), byte(r >> 8), byte(r)}
	}
	sack := func(blocks int) []byte {
		return append([]byte{5, byte(2 + 8*blocks)}, bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 0xf8}, blocks)...)
	}
	join := func(parts ...[]byte) []byte {
		all := bytes.Join(parts, nil)
		return append(all, make([]byte, (4-len(all)%4)%4)...)
	}
	nops := func(n int) []byte { return bytes.Repeat([]byte{1}, n) }
	cases := []struct {
		name    string
		options func(v, r uint32) []byte
		left    bool
	}{
		{"usual", func(v, r uint32) []byte { return join(nops(2), ts(v, r)) }, false},
		{"first", func(v, r uint32) []byte { return join(ts(v, r), nops(2)) }, false},
		{"first, then end", func(v, r uint32) []byte { return join(ts(v, r), []byte{0, 9}) }, false},
		{"odd", func(v, r uint32) []byte { return join(nops(1), ts(v, r), nops(1)) }, false},
		{"odd, then end", func(v, r uint32) []byte { return join(nops(3), ts(v, r)) }, false},
		{"after SACK", func(v, r uint32) []byte { return join(sack(1), nops(2), ts(v, r)) }, false},
		{"before SACK of three", func(v, r uint32) []byte { return join(nops(2), ts(v, r), nops(2), sack(3)) }, false},
		{"after SACK of three, at the very end", func(v, r uint32) []byte { return join(sack(3), nops(4), ts(v, r)) }, false},
		{"after an unknown one of odd length", func(v, r uint32) []byte { return join([]byte{253, 5, 1, 2, 3}, ts(v, r), nops(1)) }, false},
		{"after the end", func(v, r uint32) []byte { return join([]byte{0}, ts(v, r), nops(1)) }, true},
		{"too short", func(v, r uint32) []byte { o := join(nops(2), ts(v, r)); o[3] = 9; return o }, true},
		{"too long", func(v, r uint32) []byte { o := join(ts(v, r), nops(2)); o[1] = 12; return o }, true},
		{"cut", func(v, r uint32) []byte { return join(nops(7), ts(v, r)[:5]) }, true},
		{"length 0 before", func(v, r uint32) []byte { return join([]byte{253, 0}, ts(v, r)) }, true},
		{"length 1 before", func(v, r uint32) []byte { return join([]byte{253, 1}, ts(v, r)) }, true},
		{"length beyond the header", func(v, r uint32) []byte { return join(ts(v, r), []byte{253, 3}) }, true},
		{"kind without length", func(v, r uint32) []byte { return join(ts(v, r), []byte{1, 253}) }, true},
		{"signed by MD5", func(v, r uint32) []byte {
			return join(ts(v, r), append([]byte{19, 18}, bytes.Repeat([]byte{0xaa}, 16)...))
		}, true},
		{"signed by AO", func(v, r uint32) []byte {
			return join(append([]byte{29, 16, 1, 2}, bytes.Repeat([]byte{0xbb}, 12)...), nops(2), ts(v, r))
		}, true},
	}
	for _, c := range cases {
		bakedBoth(t, e, 42000, func(t *testing.T, f *bakedFlow) {
			m := newModelled(f, rand.New(rand.NewPCG(1, 1)))
			m.open()
			make := func(src, dst string, sport, dport uint16, options []byte) []byte {
				p := packet{protocol: lb.TCP, src: src, dst: dst, sport: sport, dport: dport, ack: true, payload: "odd"}
				for range options {
					p.options = append(p.options, nop())
				}
				return rawOptions(p.bytes(t), options)
			}
			stamp := m.state.Stamp(f.n, m.now, m.want)
			value := stamp
			if c.left {
				value = m.now
			}
			verdict, out := e.run(e.host.objects.HostOut, frame(make(f.dip, f.client, 8080, f.server, c.options(m.now, 7))))
			if want := frame(make(f.vip, f.client, 80, f.port, c.options(value, 7))); verdict != verdictNext || !bytes.Equal(out, want) {
				t.Errorf("%s: verdict %d, frame\n% x, want\n% x", c.name, verdict, out, want)
			}
			echo := stamp
			if !c.left {
				echo = m.now
			}
			verdict, out = e.run(e.host.objects.HostIn, tunnel(t, f.source, f.dip, make(f.client, f.vip, f.port, 80, c.options(8, stamp))))
			if want := frame(make(f.client, f.dip, f.server, 8080, c.options(8, echo))); verdict != verdictRedirect || !bytes.Equal(out, want) {
				t.Errorf("%s: verdict %d, frame\n% x, want\n% x", c.name, verdict, out, want)
			}
		})
	}
}

// TestHostCookieSigned: a connection whose handshake is signed gets no clock, and nothing of it is changed.
func TestHostCookieSigned(t *testing.T) {
	e := newCookieEnv(t)
	f := e.baked4(42500)
	signature := layers.TCPOption{OptionType: 19, OptionLength: 18, OptionData: bytes.Repeat([]byte{7}, 16)}
	signed := func(value, echo uint32) []layers.TCPOption {
		return []layers.TCPOption{signature, nop(), nop(), timesOption(value, echo)}
	}
	f.in(packet{syn: true, options: signed(7, 99)}, signed(7, 99))
	f.out(packet{syn: true, ack: true, options: signed(1000, 7)}, signed(1000, 7))
	f.in(packet{ack: true, options: signed(8, 1000)}, signed(8, 1000))
	f.out(packet{ack: true, options: usual(1001, 8)}, usual(1001, 8))
	if r, _ := f.record(); r.Stamped != 0 {
		t.Errorf("%+v", r)
	}
}

// TestHostCookieNone is T12 without timestamps: there is nothing to stamp, and nothing is changed.
func TestHostCookieNone(t *testing.T) {
	e := newCookieEnv(t)
	bakedBoth(t, e, 42600, func(t *testing.T, f *bakedFlow) {
		f.syn()
		f.out(packet{syn: true, ack: true, options: mssOption(0, 1000)}, mssOption(0, 1000))
		f.in(packet{ack: true}, nil)
		f.out(packet{ack: true, payload: "data"}, nil)
		if r, _ := f.record(); r.Stamped != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// TestHostCookieMPTCP: the answer to a client of MPTCP says that it is to open no more connections to the VIP, which may come to other servers.
func TestHostCookieMPTCP(t *testing.T) {
	e := newCookieEnv(t)
	capable := func(flags byte) layers.TCPOption {
		return layers.TCPOption{OptionType: 30, OptionLength: 12, OptionData: []byte{0x01, flags, 1, 2, 3, 4, 5, 6, 7, 8}}
	}
	bakedBoth(t, e, 47000, func(t *testing.T, f *bakedFlow) {
		for i, c := range []struct{ before, after byte }{{0x01, 0x21}, {0x81, 0xa1}, {0x21, 0x21}} {
			for nops := range 2 {
				f.port = uint16(47000 + 2*i + nops)
				f.server = f.port
				options := func(value uint32, flags byte) (o []layers.TCPOption) {
					for range nops {
						o = append(o, nop())
					}
					return append(o, timesOption(value, 7), capable(flags))
				}
				f.syn()
				f.out(packet{syn: true, ack: true, options: options(5000, c.before)}, options(f.n.Place(5000, uint32(f.cookie(1))), c.after))
			}
		}
		// A join has another subtype: nothing to say there.
		f.port++
		f.server = f.port
		join := layers.TCPOption{OptionType: 30, OptionLength: 16, OptionData: append([]byte{0x10, 1}, make([]byte, 12)...)}
		f.syn()
		f.out(packet{syn: true, ack: true, options: []layers.TCPOption{timesOption(1, 7), join}},
			[]layers.TCPOption{timesOption(f.n.Place(1, uint32(f.cookie(1))), 7), join})
	})
}
