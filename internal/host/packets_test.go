package host

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/packet"
)

// way4 returns the way to a server behind a device.
func way4(ifindex int, tag uint32) netdev.NextHop {
	return netdev.NextHop{MAC: [6]byte{2}, Ifindex: ifindex, Tag: tag, Source: netip.MustParseAddr(gateway4), Own: [6]byte{4}, Resolved: true}
}

// TestServersHaveDevicesOfTheirOwn checks which ways packets use, and how byServerDevices changes
// the others.
func TestServersHaveDevicesOfTheirOwn(t *testing.T) {
	const uplink, slave = 2, 3
	address := netip.MustParseAddr
	bare := way4(9, 0)
	bare.Own = [6]byte{}
	asked := way4(6, 0)
	asked.Resolved = false
	ways := netdev.WaysOf(map[netip.Addr]netdev.NextHop{
		address("10.0.0.1"): way4(7, 0), address("10.0.0.2"): way4(7, 0), address("10.0.0.3"): asked,
		address("10.0.0.4"): way4(uplink, 0), address("10.0.0.5"): way4(slave, 0), address("10.0.0.6"): way4(8, 0x81000064),
		address("10.0.0.7"): {}, address("10.0.0.8"): bare, address("2001:db8::1"): way4(uplink, 0),
	})
	if got, want := serverDevices(ways, []int{uplink, slave}), []int{6, 7}; !slices.Equal(got, want) {
		t.Errorf("devices %v, want %v", got, want)
	}
	other := netdev.NextHop{Ifindex: elsewhere, Source: netip.IPv4Unspecified(), Resolved: true}
	other6 := other
	other6.Source = netip.IPv6Unspecified()
	// Device 6 lacks the program.
	if got, want := byServerDevices(ways, []int{7}).Map(), map[netip.Addr]netdev.NextHop{
		address("10.0.0.1"): way4(7, 0), address("10.0.0.2"): way4(7, 0), address("10.0.0.3"): other, address("10.0.0.4"): other,
		address("10.0.0.5"): other, address("10.0.0.6"): other, address("10.0.0.7"): {}, address("10.0.0.8"): other, address("2001:db8::1"): other6,
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("ways %v, want %v", got, want)
	}
}

// wireServer answers every SYN that leaves by its devices, over fake tables.
type wireServer struct {
	tables *dataplane.FakeHostProbes

	mu   sync.Mutex
	sent []int32 // devices of SYNs
}

// Send implements packet.Sender.
func (w *wireServer) Send(frames []packet.Frame) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range frames {
		tcp := f.Data[len(f.Data)-20:]
		if tcp[13] != 2 {
			continue
		}
		w.sent = append(w.sent, f.Ifindex)
		isn := binary.BigEndian.Uint32(tcp[4:])
		w.tables.Answer(w.tables.Key().Number(isn), isn, dataplane.ProbeResult{State: dataplane.ProbeAnswered})
	}
	return len(frames), nil
}

func (w *wireServer) Close() error { return nil }

// taken returns the devices of the SYNs sent since the last call.
func (w *wireServer) taken() []int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := w.sent
	w.sent = nil
	return sent
}

// TestPacketsFollowTheDevices checks that servers are probed by packets while their way uses a
// device with the program. Sockets probe the others immediately, and a device on which attaching
// succeeds later is used.
func TestPacketsFollowTheDevices(t *testing.T) {
	tables := dataplane.NewFakeHostProbes(64)
	server := &wireServer{tables: tables}
	var log strings.Builder
	uplink := func() ([]int, error) { return []int{2}, nil }
	var lost error
	p := newPackets(tables, server, func() ([]int, error) { u, _ := uplink(); return u, lost }, clock.NewFake(time.Unix(1000, 0)), slog.New(slog.NewTextHandler(&log, nil)))
	answers := make(chan probe.Answer, 16)
	asker, err := p.open(func(all []probe.Answer) {
		for _, a := range all {
			answers <- a
		}
	})
	check(t, err)
	defer asker.Close()
	c := lb.Check{Kind: lb.CheckTCP, Timeout: patience, Interval: time.Minute, Engine: lb.EnginePacket}
	c.SetDefaults()
	behind, beyond := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for id, a := range []netip.Addr{behind, beyond} {
		check(t, asker.Add(uint32(id), probe.Target{Check: unique.Make(c), Address: netip.AddrPortFrom(a, 80)}))
	}
	ask := func(when string, id uint32, want probe.Verdict, words string, devices ...int32) {
		t.Helper()
		asker.Ask([]uint32{id})
		if a := <-answers; a.ID != id || a.Verdict != want || !strings.Contains(a.Words, words) {
			t.Errorf("%s: %+v, want verdict %d, %q", when, a, want, words)
		}
		if got := server.taken(); !slices.Equal(got, devices) {
			t.Errorf("%s: SYNs left by %v, want %v", when, got, devices)
		}
	}
	on := func(when string, want ...int) {
		t.Helper()
		if got := tables.On(); !slices.Equal(got, want) {
			t.Errorf("%s: the program is on %v, want %v", when, got, want)
		}
	}
	ways := func(device int) netdev.Ways {
		return netdev.WaysOf(map[netip.Addr]netdev.NextHop{behind: way4(device, 0), beyond: way4(2, 0)})
	}
	p.changed(ways(7))
	on("at first", 7)
	ask("behind a device", 0, probe.Good, "connected", 7)
	ask("beyond the uplink", 1, probe.Unsure, "does not lead out of a device of servers")

	tables.Break(8)
	p.changed(ways(8))
	on("a device without room")
	ask("behind a device without room", 0, probe.Unsure, "does not lead out of a device of servers")
	if n := strings.Count(log.String(), "interface 8: broken"); n != 1 {
		t.Errorf("the fault is logged %d times:\n%s", n, log.String())
	}
	p.retry()
	if n := strings.Count(log.String(), "interface 8: broken"); n != 1 {
		t.Errorf("the same fault is logged %d times:\n%s", n, log.String())
	}
	tables.Break()
	p.retry()
	on("room after all", 8)
	ask("behind it", 0, probe.Good, "connected", 8)

	lost = errors.New("interface up0: there is none")
	p.changed(ways(7))
	on("which is the uplink is not known")
	ask("then", 0, probe.Unsure, "")
	lost = nil
	p.retry()
	on("and now it is", 7)
	p.changed(netdev.WaysOf(map[netip.Addr]netdev.NextHop{behind: {}, beyond: way4(2, 0)}))
	on("the device went")
	ask("without a way", 0, probe.Unsure, "no route to 10.0.0.1")
}

// TestEngineOfHosts checks that hosts use packets only for checks that request them, and sockets
// for all others, whatever path muxes use.
func TestEngineOfHosts(t *testing.T) {
	for _, c := range []struct{ given, through, want string }{
		{"", lb.ThroughDirect, lb.EngineSocket}, {"", lb.ThroughTunnel, lb.EngineSocket},
		{lb.EngineSocket, lb.ThroughDirect, lb.EngineSocket},
		{lb.EnginePacket, lb.ThroughDirect, lb.EnginePacket}, {lb.EnginePacket, lb.ThroughTunnel, lb.EnginePacket},
	} {
		got := direct(lb.Check{Kind: lb.CheckTCP, Engine: c.given, Through: c.through}, &plan.Binding{DIPPort: 80})
		if got.Engine != c.want || got.Through != lb.ThroughDirect {
			t.Errorf("engine %q through %s: %q through %s, want %q", c.given, c.through, got.Engine, got.Through, c.want)
		}
	}
}

// TestAHostWithoutRoomForPacketsSaysSo checks that its status reports the lack of room, as that of
// muxes does.
func TestAHostWithoutRoomForPacketsSaysSo(t *testing.T) {
	w := newTester(t)
	for _, crowded := range []int{0, 2, 0} {
		w.prober.crowded = crowded
		if got := w.Status().GetCrowded(); got != (crowded > 0) {
			t.Errorf("%d checks without room: crowded %t", crowded, got)
		}
	}
}
