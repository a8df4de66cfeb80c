package dataplane

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// first makes the pins what version 1 left: bindings in their old map, outer destinations counted.
func (e *hostEnv) first() {
	e.t.Helper()
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
