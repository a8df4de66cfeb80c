package packet

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// prompt is a network whose servers answer each SYN immediately.
type prompt struct {
	tables *dataplane.FakeProbes
	key    dataplane.ProbeKey
	bytes  int
}

func (p *prompt) Send(frames []Frame) (int, error) {
	for _, f := range frames {
		tcp := f.Data[len(f.Data)-tcpHeader:]
		p.bytes += len(f.Data)
		if tcp[13] == flagSYN {
			isn := binary.BigEndian.Uint32(tcp[4:])
			p.tables.Answer(p.key.Number(isn), isn, dataplane.ProbeResult{State: dataplane.ProbeAnswered})
		}
	}
	return len(frames), nil
}

func (p *prompt) Close() error { return nil }

// BenchmarkRounds measures the prober's time for a round of TCP probes, per probe, directly and
// through tunnels: building frames, sending to a null sender, reading answers.
func BenchmarkRounds(b *testing.B) {
	for _, rules := range []int{1000, 20_000} {
		for _, way := range []string{lb.ThroughDirect, lb.ThroughTunnel} {
			b.Run(fmt.Sprintf("%s/%d", way, rules), func(b *testing.B) {
				tables := dataplane.NewFakeProbes(1 << 16)
				network := &prompt{tables: tables, key: tables.Key()}
				c := newCore(Options{Tables: tables, Sender: network, Random: rand.NewChaCha8([32]byte{}).Uint64, Window: DefaultWindow})
				now := int64(1e9)
				c.wheel.now = now / millisecond
				c.tunnelSources([]netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}, now)
				ways, ids := map[netip.Addr]netdev.NextHop{}, make([]uint32, rules)
				for i := range rules {
					at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080)
					x := target(at, within(time.Second, func(c *lb.Check) { tcp(c); c.Through = way }))
					if way == lb.ThroughTunnel {
						x.Tunnel = unique.Make(probe.Tunnel{VIP: netip.MustParseAddrPort("203.0.113.10:80"), Outer: at.Addr(), Encap: lb.EncapIPIP})
					}
					if err := c.add(uint32(i), x); err != nil {
						b.Fatal(err)
					}
					ways[at.Addr()], ids[i] = simWay, uint32(i)
				}
				c.hops(netdev.WaysOf(ways), now)
				b.ResetTimer()
				rounds := 0
				for b.Loop() {
					c.ask(ids, now)
					good := 0
					for good < rules {
						c.step(now)
						for _, a := range c.answers {
							if a.Verdict != probe.Good {
								b.Fatalf("%+v", a)
							}
						}
						good += len(c.answers)
						c.answers = c.answers[:0]
						now += millisecond
					}
					rounds++
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rounds*rules), "ns/probe")
				b.ReportMetric(float64(network.bytes)/float64(rounds*rules), "B/probe")
			})
		}
	}
}
