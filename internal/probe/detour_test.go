package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/lb"
)

// tunnelTo returns a target through a tunnel.
func tunnelTo(dip string, change func(*lb.Check)) Target {
	c := checkOf(func(c *lb.Check) {
		c.Through = lb.ThroughTunnel
		if change != nil {
			change(c)
		}
	})
	at := netip.MustParseAddr(dip)
	return Wanted(c, at, 8080, Way{
		Endpoint: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}, Outer: at, Encap: lb.EncapIPIP, Member: 1,
	})
}

// socketsOnly accepts targets that sockets can probe: none through a tunnel.
func socketsOnly(t Target) error {
	if c := t.Check.Value(); t.Tunnel != (unique.Handle[Tunnel]{}) || c.Through != lb.ThroughDirect || c.Engine == lb.EnginePacket {
		return fmt.Errorf("through: %q: sockets ask directly only", c.Through)
	}
	return nil
}

// TestTunnelsWithoutPackets checks targets through a tunnel that packets refuse. Sockets probe them
// at the backend's address. The results name the original target and contain AskedDirectly. Packets
// probe them as soon as there is room.
func TestTunnelsWithoutPackets(t *testing.T) {
	for _, c := range []struct {
		name    string
		refusal error
		crowded int
	}{
		{"no room", ErrCrowded, 1},
		{"a request that is too long", errors.New("request: 9000 bytes"), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				packets := &asker{answer: after(Good, 0), takes: func(Target) error { return fmt.Errorf("number 9: %w", c.refusal) }}
				sockets := &asker{answer: after(Good, 0), takes: socketsOnly}
				r := newRig(t, packets, sockets)
				target := tunnelTo("10.20.1.11", func(c *lb.Check) { c.Engine = lb.EnginePacket })
				set(t, r.Engine, []Target{target})
				pass(3 * time.Second)
				for _, x := range r.take() {
					if x.Target != target || !x.Good || x.Words != "verdict 1, asked directly" {
						t.Errorf("result %+v", x)
					}
				}
				for _, asked := range sockets.take() {
					if asked.target.Address != netip.MustParseAddrPort("10.20.1.11:8080") || asked.target.Tunnel != (unique.Handle[Tunnel]{}) {
						t.Errorf("asked %+v", asked.target)
					}
				}
				if s := r.Stats(); s.Crowded != c.crowded || s.Unaskable != 0 || s.Good < 3 || s.Means[1].Targets != 1 || s.Direct != 1 {
					t.Errorf("%+v", s)
				}
				packets.mu.Lock()
				packets.takes = nil
				packets.mu.Unlock()
				pass(PacketsRest + 10*time.Second)
				r.take()
				pass(2 * time.Second)
				want, words := 1-c.crowded, "verdict 1"
				if want == 1 {
					words += AskedDirectly // packets still refuse it
				}
				for _, x := range r.take() {
					if x.Words != words {
						t.Errorf("result %+v", x)
					}
				}
				if s := r.Stats(); s.Crowded != 0 || s.Direct != want {
					t.Errorf("%+v", s)
				}
				set(t, r.Engine, nil)
				if s := r.Stats(); s.Targets != 0 || s.Direct != 0 || sockets.known()+packets.known() != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestUnsureOfATunnel checks that a socket interprets an answer that arrived through the tunnel and
// that packets cannot decide. Each probe uses the tunnel first, because a socket must not hide that
// the tunnel is cut.
func TestUnsureOfATunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		packets, sockets := &asker{answer: after(Unsure, 0)}, &asker{answer: after(Good, 0), takes: socketsOnly}
		r := newRig(t, packets, sockets)
		target := tunnelTo("10.20.1.11", nil)
		set(t, r.Engine, []Target{target})
		pass(10 * time.Second)
		// within the engine's first second a socket may probe alone
		if p, s := len(packets.take()), len(sockets.take()); p < 10 || s < p || s > p+1 {
			t.Errorf("%d by packets, %d by sockets", p, s)
		}
		for _, x := range r.take() {
			if x.Target != target || !x.Good || x.Words != "verdict 1, asked directly" {
				t.Errorf("result %+v", x)
			}
		}
		packets.says(after(Bad, 0))
		pass(1100 * time.Millisecond)
		got := r.take()
		if len(got) == 0 || got[len(got)-1].Good || got[len(got)-1].Words != "verdict 0" {
			t.Errorf("the tunnel is cut: %+v", got)
		}
		// No prober can decide.
		packets.says(after(Unsure, 0))
		sockets.says(after(Unsure, 0))
		pass(3 * time.Second)
		if got := r.take(); len(got) < 2 || !got[len(got)-1].Void {
			t.Errorf("nobody is sure: %+v", got)
		}
		sockets.says(after(Good, 0))
		pass(3 * time.Second)
		if got := r.take(); len(got) == 0 || !got[len(got)-1].Good {
			t.Errorf("a socket is: %+v", got)
		}
	})
}
