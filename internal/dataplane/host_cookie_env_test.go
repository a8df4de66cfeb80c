package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// cookieMember is the id of the member whose flows the tests have.
const cookieMember = 0xabc

// bakedKey is the key of an epoch.
func bakedKey(epoch uint32) plan.CookieKey {
	k := plan.CookieKey{Epoch: epoch, Shuffled: epoch%2 == 1}
	for i := range k.Key {
		k.Key[i] = byte(epoch)*16 + byte(i)
	}
	return k
}

// bakedKeys are the keys of a VIP with these epochs live; the last one stamps.
func bakedKeys(vip string, epochs ...uint32) plan.CookieKeys {
	k := plan.CookieKeys{VIP: netip.MustParseAddr(vip)}
	for _, e := range epochs {
		k.Keys, k.Mint = append(k.Keys, bakedKey(e)), e
	}
	return k
}

// baked makes a binding one whose flows have cookies.
func baked(b plan.Binding) plan.Binding {
	b.Cookie, b.Member = true, cookieMember
	return b
}

func (e *hostEnv) applyCookies(keys []plan.CookieKeys, bindings ...plan.Binding) {
	e.t.Helper()
	must(e.t, e.host.Apply(HostState{TunnelSources: tunnelSources, MTU: 1500, Bindings: bindings, Cookies: keys}))
}

// newCookieEnv is a host with a VIP of each family whose packets carry cookies.
func newCookieEnv(t *testing.T) *hostEnv {
	e := newHostEnv(t).quiet()
	e.applyCookies([]plan.CookieKeys{bakedKeys(vip4, 1), bakedKeys(vip6, 1)}, baked(bind(lb.TCP, vip4, dip4, dip4, true)), baked(bind(lb.TCP, vip6, dip6, dip6, true)))
	return e
}

// bakedFlow is a connection of a client to a VIP, whose packets a test makes.
type bakedFlow struct {
	e            *hostEnv
	n            cookie.TimeBits
	client, vip  string
	dip, source  string
	port, server uint16 // the client's, as it knows it and as its server does
	member       uint16
	before       func(p *packet) // changes every packet, if not nil
}

func (e *hostEnv) baked4(port uint16) *bakedFlow {
	return &bakedFlow{e: e, n: cookie.HostBits, client: client4, vip: vip4, dip: dip4, source: source4, port: port, server: port, member: cookieMember}
}

func (e *hostEnv) baked6(port uint16) *bakedFlow {
	return &bakedFlow{e: e, n: cookie.HostBits, client: client6, vip: vip6, dip: dip6, source: source6, port: port, server: port, member: cookieMember}
}

// secretUnder is what member ids are shuffled with under a key.
func secretUnder(k plan.CookieKey) cookie.Secret {
	if !k.Shuffled {
		return cookie.InOrder
	}
	return cookie.SecretOf(k.Key)
}

// cookie is that of the flow under the key of an epoch.
func (f *bakedFlow) cookie(epoch uint32) uint16 {
	key := bakedKey(epoch)
	prf := cookie.PRF(key.Key, cookie.Flow{Client: netip.AddrPortFrom(netip.MustParseAddr(f.client), f.port), VIP: netip.AddrPortFrom(netip.MustParseAddr(f.vip), 80)})
	return cookie.Encode(prf, key.ID(), f.member, secretUnder(key))
}

func nop() layers.TCPOption { return layers.TCPOption{OptionType: layers.TCPOptionKindNop} }

// timesOption is the timestamps option.
func timesOption(value, echo uint32) layers.TCPOption {
	return layers.TCPOption{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, value), echo)}
}

// usual are the options of a segment without SYN.
func usual(value, echo uint32) []layers.TCPOption {
	return []layers.TCPOption{nop(), nop(), timesOption(value, echo)}
}

// onSYN are those of a SYN or its answer, with an MSS that is not clamped.
func onSYN(value, echo uint32) []layers.TCPOption {
	return append(mssOption(0, 1000), timesOption(value, echo), nop(),
		layers.TCPOption{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{7}})
}

// in gives a packet of the client to the host and fails unless it arrives with these options and nothing else changed but its addresses.
func (f *bakedFlow) in(p packet, options []layers.TCPOption) {
	f.e.t.Helper()
	p.protocol, p.src, p.dst, p.sport, p.dport = lb.TCP, f.client, f.vip, f.port, 80
	if f.before != nil {
		f.before(&p)
	}
	verdict, out := f.e.run(f.e.host.objects.HostIn, tunnel(f.e.t, f.source, f.dip, p.bytes(f.e.t)))
	p.dst, p.sport, p.dport, p.options = f.dip, f.server, 8080, options
	if want := frame(p.bytes(f.e.t)); verdict != verdictRedirect || !bytes.Equal(out, want) {
		f.e.t.Fatalf("verdict %d, frame\n% x, want\n% x", verdict, out, want)
	}
}

// out gives a packet of the server to the host and fails unless it leaves with these options and nothing else changed but its addresses.
func (f *bakedFlow) out(p packet, options []layers.TCPOption) {
	f.e.t.Helper()
	p.protocol, p.src, p.dst, p.sport, p.dport = lb.TCP, f.dip, f.client, 8080, f.server
	if f.before != nil {
		f.before(&p)
	}
	verdict, out := f.e.run(f.e.host.objects.HostOut, frame(p.bytes(f.e.t)))
	p.src, p.sport, p.dport, p.options = f.vip, 80, f.port, options
	if want := frame(p.bytes(f.e.t)); verdict != verdictNext || !bytes.Equal(out, want) {
		f.e.t.Fatalf("verdict %d, frame\n% x, want\n% x", verdict, out, want)
	}
}

// syn is a SYN of the client, with what is left of a connection before.
func (f *bakedFlow) syn() {
	f.e.t.Helper()
	f.in(packet{syn: true, options: onSYN(7, 0x12345678)}, onSYN(7, 0))
}

// answer is the SYN-ACK of the server at its time t, and what becomes of that.
func (f *bakedFlow) answer(t, stamp uint32) {
	f.e.t.Helper()
	f.out(packet{syn: true, ack: true, options: onSYN(t, 7)}, onSYN(stamp, 7))
}

// data is a segment of the server.
func (f *bakedFlow) data(t, stamp uint32) {
	f.e.t.Helper()
	f.out(packet{ack: true, options: usual(t, 7), payload: "odd"}, usual(stamp, 7))
}

// ack is a segment of the client that echoes a stamp, and what the server reads.
func (f *bakedFlow) ack(stamp, t uint32) {
	f.e.t.Helper()
	f.in(packet{ack: true, options: usual(8, stamp), payload: "x"}, usual(8, t))
}

// record is the flow's record, and its clock.
func (f *bakedFlow) record() (hostFlowRecord, hostEvc) {
	f.e.t.Helper()
	r := flowOf(f.e, f.client, f.dip, f.server)
	place, _, ok := f.e.host.flows.find(&r, f.e.tick())
	if !ok {
		f.e.t.Fatal("no flow")
	}
	return f.e.host.flows.records[place], f.e.host.flows.clocks[place]
}
