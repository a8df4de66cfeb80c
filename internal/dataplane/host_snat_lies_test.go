package dataplane

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// TestHostSNATLies gives every prefix of good frames of connections that a server opens, and frames with random bytes changed, to both
// programs: whatever they say, a packet ends in one way that is counted, and what is cut short is neither sent on nor delivered.
func TestHostSNATLies(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("SHUNT_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	t.Logf("SHUNT_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	e := newSNATEnv(t, leasedRanges(200, 64)...)
	e.host.SetDevice(e.ifindex)
	syn := packet{protocol: lb.TCP, src: dip4, dst: far4, sport: 40001, dport: 443, syn: true, options: mssOption(1, 1460)}
	ask := packet{protocol: lb.UDP, src: dip4, dst: far4, sport: 40002, dport: 53, payload: "question"}
	tcp, udp := e.leaves("SYN", syn, snatMSS, "mss_clamped"), e.leaves("UDP", ask, 0)
	answer := packet{protocol: lb.TCP, src: far4, dst: vip4, sport: 443, dport: tcp, syn: true, ack: true, acked: 0x11223345, options: mssOption(2, 1460)}
	reply := packet{protocol: lb.UDP, src: far4, dst: vip4, sport: 53, dport: udp, payload: "answer"}
	sent := ask
	sent.src, sent.sport = vip4, udp
	echo := icmp(t, dip4, far4, 8, 0, 77<<16|1, []byte("ping"))
	in := e.host.objects.HostIn
	out := e.host.objects.HostOut
	given := uint64(0)
	before := e.reasons(nil)
	must(t, netdev.In(e.namespace, func() error {
		give := func(p *ebpf.Program, f []byte) (int32, []byte, error) {
			given++
			opts := &ebpf.RunOptions{Data: f, DataOut: make([]byte, len(f)+2048), Context: skbContext{Ifindex: uint32(e.ifindex)}}
			verdict, err := p.Run(opts)
			return int32(verdict), opts.DataOut, err
		}
		for name, c := range map[string]struct {
			p *ebpf.Program
			f []byte
		}{
			"SYN": {out, frame(syn.bytes(t))}, "UDP": {out, frame(ask.bytes(t))}, "ping": {out, frame(echo)},
			"fragment": {out, frame(cut(ask.bytes(t), 9, 8)[0])}, "error of the server": {out, frame(icmp(t, dip4, far4, 3, 3, 0, reply.bytes(t)))},
			"SYN-ACK": {in, e.byIPIP(answer.bytes(t))}, "answer": {in, e.byGUE(reply.bytes(t))},
			"error":      {in, e.byIPIP(icmp(t, router4, vip4, 3, 4, 1400, sent.bytes(t)))},
			"echo reply": {in, e.byGUE(icmp(t, far4, vip4, 0, 0, 1600<<16|1, []byte("ping")))},
		} {
			for n := shortest(c.f); n < len(c.f); n++ {
				verdict, got, err := give(c.p, c.f[:n])
				if err != nil {
					return err
				}
				if c.p == in && (verdict == verdictRedirect || verdict == verdictPass) || c.p == out && (verdict == verdictRedirect || !bytes.Equal(got, c.f[:n])) {
					t.Errorf("%s: verdict %d when cut to %d bytes", name, verdict, n)
				}
			}
			for range 200 {
				lie := append([]byte{}, c.f...)
				for range 1 + random.IntN(3) {
					lie[12+random.IntN(len(lie)-12)] = byte(random.Uint32())
				}
				if _, _, err := give(c.p, lie); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	ends := uint64(0)
	for reason, n := range e.reasons(before) {
		if HostReasons().Class(reason) != ClassInfo {
			ends += n
		}
	}
	if ends != given {
		t.Errorf("%d packets given, %d ends counted", given, ends)
	}
}
