package dataplane

import (
	"bytes"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// sent gives a frame to host_serve as one that a server sent by a device: it stays as it was.
func (e *hostEnv) sent(name, device string, in []byte, verdict int32, reasons ...string) {
	e.t.Helper()
	before := e.reasons(nil)
	v, got := e.runOn(e.host.objects.HostServe, e.device(device), in)
	if r := e.reasons(before); v != verdict || !maps.Equal(r, one(reasons...)) {
		e.t.Errorf("%s: verdict %d, reasons %v, want %d, %v", name, v, r, verdict, reasons)
	}
	if !bytes.Equal(got, in) {
		e.t.Errorf("%s: frame\n% x, want\n% x", name, got, in)
	}
}

// serve puts host_serve on devices, of which it returns those that have it.
func (e *hostEnv) serve(names ...string) (on []int) {
	e.t.Helper()
	s := HostServers{}
	for _, n := range names {
		s.Devices = append(s.Devices, e.device(n))
	}
	slices.Sort(s.Devices)
	must(e.t, netdev.In(e.namespace, func() (err error) {
		on, err = e.host.Serve(s)
		return err
	}))
	if !slices.Equal(on, s.Devices) {
		e.t.Errorf("on devices %v, want %v", on, s.Devices)
	}
	return on
}

// programs are the ids of the tcx programs of a device's ingress, in order.
func (e *hostEnv) programs(device string) (ids []ebpf.ProgramID) {
	e.t.Helper()
	target := e.device(device)
	must(e.t, netdev.In(e.namespace, func() error {
		all, err := link.QueryPrograms(link.QueryOptions{Target: target, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		for _, p := range all.Programs {
			ids = append(ids, p.ID)
		}
		return nil
	}))
	return ids
}

// programID is the id of a loaded program.
func programID(t *testing.T, p *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := p.Info()
	must(t, err)
	id, _ := info.ID()
	return id
}

// TestHostServeTakesWhole: what a server sends goes on, whatever it is, unless its IP header is none.
func TestHostServeTakesWhole(t *testing.T) {
	e := newHostEnv(t).quiet()
	four := frame(packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: 40001, ack: true, payload: "x"}.bytes(t))
	six := frame(packet{protocol: lb.UDP, src: dip6, dst: client6, sport: 5353, dport: 40001, payload: "x"}.bytes(t))
	change := func(f []byte, at int, v ...byte) []byte {
		f = slices.Clone(f)
		copy(f[at:], v)
		return f
	}
	arp := append(append(append([]byte{}, macB...), macA...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	for name, f := range map[string][]byte{
		"IPv4": four, "IPv6": six, "ARP": arp, "ARP, tagged": tagged(arp, 0x81000064), "tagged": tagged(four, 0x81000064),
		"four tags": tagged(six, 0x88a80001, 0x81000002, 0x81000000, 0x81000003), "IPv6 jumbogram": change(six, 18, 0, 0),
		"IPv6 source route": change(six, 20, 43),
	} {
		e.sent(name, "vm0", f, verdictNext)
	}
	for name, f := range map[string][]byte{
		"IPv4 length": change(four, 16, 0x7f), "IPv4 header length": change(four, 14, 0x44), "IPv4 version": change(four, 14, 0x65),
		"IPv4 cut": four[:40], "IPv6 cut, tagged": tagged(six, 0x81000000)[:57], "IPv4 length 0": change(four, 16, 0, 0),
		"five tags": tagged(four, 0x81000000, 0x81000000, 0x81000000, 0x81000000, 0x81000000), "cut tag": tagged(four, 0x81000000, 0x81000000)[:19],
		"tagged lie": tagged(change(four, 16, 0x7f), 0x81000000),
	} {
		e.sent(name, "vm0", f, verdictDrop, "sent_malformed")
	}
}

// TestHostServeFollowsDevices: the program is first where servers are and nowhere else, before that of checks; an agent that starts
// replaces it in one step, also one of the version before, and --stop leaves nothing.
func TestHostServeFollowsDevices(t *testing.T) {
	e := newHostEnv(t)
	expect := func(when, device string, want ...ebpf.ProgramID) {
		t.Helper()
		if got := e.programs(device); !slices.Equal(got, want) {
			t.Errorf("%s: %s has programs %v, want %v", when, device, got, want)
		}
	}
	remake := func(device string) {
		t.Helper()
		must(t, netdev.In(e.namespace, func() error { return exec.Command("ip", "link", "delete", device+"0").Run() }))
		n, err := netdev.OpenNamespace(e.namespace)
		must(t, err)
		defer n.Close()
		must(t, netdev.AddVeth(netdev.VethEnd{Namespace: n, Name: device + "0"}, netdev.VethEnd{Namespace: n, Name: device + "1"}, 1280))
	}
	served := func() ebpf.ProgramID { return programID(t, e.host.objects.HostServe) }
	probes, err := e.host.OpenProbes(64)
	must(t, err)
	t.Cleanup(func() { must(t, probes.Close()) })
	probe := func(names ...string) {
		t.Helper()
		var devices []int
		for _, n := range names {
			devices = append(devices, e.device(n))
		}
		must(t, netdev.In(e.namespace, func() error {
			_, err := probes.Follow(devices)
			return err
		}))
	}
	probe("vm0")
	e.serve("vm0", "nm0")
	probe("vm0", "nm0")
	probed := programID(t, probes.objects.HostProbe)
	expect("checks came first", "vm0", served(), probed)
	expect("checks came later", "nm0", served(), probed)
	probe()

	c := e.host.state.config
	c.AbiVersion = hostABIThird
	must(t, e.host.objects.HostConfigs.Put(uint32(0), c))
	must(t, e.host.Close())
	e.open()
	expect("another agent", "vm0", served())
	expect("another agent", "nm0", served())
	e.serve("nm0")
	expect("a server left", "vm0")
	expect("a server stays", "nm0", served())

	remake("nm")
	must(t, e.host.Close())
	e.open()
	if left, err := servePins(e.dir); err != nil || len(left) != 0 {
		t.Errorf("the device is gone, and the pins %v are left: %v", left, err)
	}
	e.serve("nm0", "vm0")
	remake("nm")
	e.serve("nm0", "vm0")
	expect("a device that was made again", "nm0", served())
	vm0 := e.device("vm0")
	must(t, netdev.In(e.namespace, func() error {
		on, err := e.host.Serve(HostServers{Devices: []int{vm0, 1 << 20}})
		if err == nil || !slices.Equal(on, []int{vm0}) {
			t.Errorf("a device that there is not: on %v, want %d, error %v", on, vm0, err)
		}
		return nil
	}))
	id := served()
	must(t, e.host.Close())
	expect("the agent ended", "vm0", id)
	must(t, DetachHost(e.dir))
	expect("stopped", "vm0")
	if left, _ := filepath.Glob(filepath.Join(e.dir, "*")); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}
