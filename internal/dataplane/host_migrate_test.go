package dataplane

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// second makes the pins what version 2 left: flows and substitutes in maps of the kernel.
func (e *hostEnv) second() {
	e.t.Helper()
	dir, o, t := e.dir, &e.host.objects, e.host.flows
	create := func(name string, key, value uint32) *ebpf.Map {
		m, err := ebpf.NewMapWithOptions(&ebpf.MapSpec{
			Name: name, Type: ebpf.LRUHash, KeySize: key, ValueSize: value, MaxEntries: 1 << 16, Pinning: ebpf.PinByName,
		}, ebpf.MapOptions{PinPath: dir})
		must(e.t, err)
		e.t.Cleanup(func() { m.Close() })
		return m
	}
	flows := create(hostMapFlowsTwo, 48, 24)
	create(hostMapSubstitutesTwo, 72, 4)
	t.all(e.tick(), func(_ flowTag, r *hostFlowRecord) {
		if r.Kind != uint8(hostFlowKindFLOW_INBOUND) {
			return
		}
		must(e.t, flows.Put(
			flowKeyTwo{Dip: t.addrs.cells[r.Dip], Client: r.Client, Vni: r.Scope >> 8, DipPortBe: r.DipPortBe, ClientPortBe: r.PeerPortBe, Protocol: uint8(r.Scope)},
			flowTwo{Vip: t.addrs.cells[r.Vip], VipPortBe: r.VipPortBe, ClientPortBe: r.ClientPortBe, Mss: r.Mss, Binding: r.Binding}))
	})
	c := e.host.state.config
	c.AbiVersion = hostABISecond
	must(e.t, o.HostConfigs.Put(uint32(0), c))
	for _, m := range []string{hostMapFlowTags, hostMapFlowRecords, hostMapFlowAddrs, hostMapFlowSetups, hostMapBindingFlows} {
		must(e.t, os.Remove(filepath.Join(dir, m)))
	}
}

// first makes the pins what version 1 left: bindings in their old map, outer destinations counted.
func (e *hostEnv) first() {
	e.t.Helper()
	e.second()
	dir, o := e.dir, &e.host.objects
	old, err := ebpf.NewMapWithOptions(&ebpf.MapSpec{
		Name: hostMapBindingsOne, Type: ebpf.Hash, KeySize: 40, ValueSize: 32, MaxEntries: uint32(hostMaxBindings), Flags: 1, Pinning: ebpf.PinByName,
	}, ebpf.MapOptions{PinPath: dir})
	must(e.t, err)
	defer old.Close()
	for k, v := range e.host.state.bindings {
		must(e.t, old.Put(bindingKeyOne{OuterDst: k.OuterDst, Vip: k.Vip, PortBe: k.PortBe, Protocol: k.Protocol}, v))
		must(e.t, o.Outers.Put(k.OuterDst, uint32(4)))
	}
	c := e.host.state.config
	c.AbiVersion = hostABIFirst
	must(e.t, o.HostConfigs.Put(uint32(0), c))
	for _, m := range []string{hostMapBoundMembers, hostMapBoundRanges, hostMapDatagrams} {
		must(e.t, os.Remove(filepath.Join(dir, m)))
	}
}

// TestHostMigrates: pins of version 1 are taken over, flows and counters included, by agents that die on the way too.
func TestHostMigrates(t *testing.T) {
	e := newHostEnv(t)
	b := bind(lb.TCP, vip4, dip4, dip4, true)
	e.apply(b)
	ask := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, ack: true}
	got := ask
	got.dst, got.dport = dip4, 8080
	answer := packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: 40001, ack: true}
	want := answer
	want.src, want.sport = vip4, 80
	e.expect("before", tunnel(t, source4, dip4, ask.bytes(t)), verdictRedirect, frame(got.bytes(t)), "in_delivered")
	e.first()
	for range 2 {
		e.open()
		e.answered("a flow of before", frame(answer.bytes(t)), verdictNext, frame(want.bytes(t)), "out_returned")
		e.expect("before a plan", tunnel(t, source4, dip4, ask.bytes(t)), verdictRedirect, frame(got.bytes(t)), "in_delivered")
		if _, err := os.Stat(filepath.Join(e.dir, hostMapBindingsOne)); !os.IsNotExist(err) {
			t.Errorf("the old bindings are left: %v", err)
		}
		e.first()
	}
	e.open()
	e.apply(b, gue(1, b))
	c, err := e.host.Counters()
	must(t, err)
	if c.Bindings[0].Packets+c.Bindings[1].Packets != 3 {
		t.Errorf("bindings %+v, want one with 3 packets", c.Bindings)
	}
	e.first()
	must(t, DetachHost(e.dir))
	if left, _ := filepath.Glob(filepath.Join(e.dir, "*")); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// TestHostMigratesFlows: flows of version 2 live on, the one with a substitute port too, and the table can have another size.
func TestHostMigratesFlows(t *testing.T) {
	e := newHostEnv(t)
	other := "203.0.113.77"
	a, b := bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, other, dip4, dip4, true)
	e.apply(a, b)
	ask := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, ack: true}
	e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, ask.bytes(t)))
	ask.dst = other
	_, out := e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, ask.bytes(t)))
	port := binary.BigEndian.Uint16(out[34:])
	check := func(when string) {
		t.Helper()
		for vip, p := range map[string]uint16{vip4: 40001, other: port} {
			got := packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: p, ack: true}
			want := got
			want.src, want.sport, want.dport = vip, 80, 40001
			e.answered(when+": answer from "+vip, frame(got.bytes(t)), verdictNext, frame(want.bytes(t)), "out_returned")
			in := packet{protocol: lb.TCP, src: client4, dst: vip, sport: 40001, dport: 80, ack: true}
			to := in
			to.dst, to.dport, to.sport = dip4, 8080, p
			reasons := []string{"in_delivered"}
			if p != 40001 {
				reasons = append(reasons, "client_port_mapped")
			}
			e.expect(when+": "+vip, tunnel(t, source4, dip4, in.bytes(t)), verdictRedirect, frame(to.bytes(t)), reasons...)
		}
	}
	check("before")
	e.second()
	e.open()
	check("after version 2")
	for _, size := range []uint32{MinHostFlows * 4, MinHostFlows} {
		e.flows = size
		e.open()
		if n := len(e.host.flows.records); n != int(size) {
			t.Errorf("%d records, want %d", n, size)
		}
		check(fmt.Sprintf("with %d", size))
		left, err := filepath.Glob(filepath.Join(e.dir, "*_was"))
		if err != nil || len(left) != 0 {
			t.Errorf("%v is left", left)
		}
	}
	e.flows = 0
	e.open()
	if n := len(e.host.flows.records); n != int(MinHostFlows) {
		t.Errorf("%d records, want what the pins have", n)
	}
	for _, size := range []uint32{1, MinHostFlows / 2, MinHostFlows + 1, MaxHostFlows * 2} {
		_, err := OpenHost(HostOptions{Ifindex: e.ifindex, Dir: e.dir, Flows: size})
		want := fmt.Sprintf("flows: %d: must be a power of two from 8192 to 8388608", size)
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	check("after what was refused")
}

// TestHostMigratesThird: version 3 counted neither servers nor connections. Connections that are there are known at once, servers begin at zero.
func TestHostMigratesThird(t *testing.T) {
	e := newHostEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	e.in4(packet{sport: 1, ack: true})
	e.out4(packet{dport: 1, ack: true})
	e.in4(packet{sport: 2, ack: true})
	c := e.host.state.config
	c.AbiVersion = hostABIThird
	must(t, e.host.objects.HostConfigs.Put(uint32(0), c))
	for _, m := range []string{hostMapFlowCounts, hostMapServerMeters} {
		must(t, os.Remove(filepath.Join(e.dir, m)))
	}
	e.open()
	e.quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	check := func(connections uint64, in uint64) {
		t.Helper()
		for key, n := range e.connections() {
			if n != connections {
				t.Errorf("%s has %d connections, want %d", key.VIP, n, connections)
			}
		}
		if got := e.metered(dip4); got.In.Packets != in || got.FlowsIn != 0 {
			t.Errorf("%+v, want %d packets", got, in)
		}
	}
	check(1, 0)
	e.in4(packet{sport: 1, ack: true})
	e.out4(packet{dport: 2, ack: true})
	check(2, 1)
	if c := e.host.state.config; c.AbiVersion != uint32(hostHostLimitLIMIT_HOST_ABI_VERSION) {
		t.Errorf("the pins are of version %d", c.AbiVersion)
	}
}
