package host

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
)

// Verdicts of foreign programs: the next program decides, or none after it runs.
const (
	foreignNext = -1
	foreignPass = 0
)

// foreign is a program of another owner: it counts the frames that it receives and returns the same
// verdict for all.
type foreign struct {
	t       *testing.T
	program *ebpf.Program
	counts  *ebpf.Map
}

func newForeign(t *testing.T, verdict int32) *foreign {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	check(t, err)
	t.Cleanup(func() { counts.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"),
		asm.Return(),
	}})
	check(t, err)
	t.Cleanup(func() { program.Close() })
	return &foreign{t, program, counts}
}

// seen returns how many frames it received.
func (f *foreign) seen() (n uint64) {
	f.t.Helper()
	check(f.t, f.counts.Lookup(uint32(0), &n))
	return n
}

func (f *foreign) id() ebpf.ProgramID {
	info, err := f.program.Info()
	check(f.t, err)
	id, _ := info.ID()
	return id
}

// attachForeign attaches it to a device of the host. A nil anchor is the kernel's default, after
// all others.
func (n *testNet) attachForeign(f *foreign, device string, at ebpf.AttachType, anchor link.Anchor) (l link.Link) {
	n.t.Helper()
	check(n.t, netdev.In(n.host, func() (err error) {
		l, err = link.AttachTCX(link.TCXOptions{Interface: ifindex(n.t, device), Program: f.program, Attach: at, Anchor: anchor})
		return err
	}))
	n.t.Cleanup(func() { l.Close() })
	return l
}

// hook is a place where a program of ours is attached.
type hook struct {
	device string
	at     ebpf.AttachType
}

var hooks = []hook{{"up0", ebpf.AttachTCXIngress}, {"up0", ebpf.AttachTCXEgress}, {"vm0", ebpf.AttachTCXIngress}}

// TestOthersProgramsGoOn attaches foreign tcx programs before and after ours, one of which ends the
// chain, and clsact filters after all. It checks that each receives its frames in any order of
// attaching and detaching.
func TestOthersProgramsGoOn(t *testing.T) {
	n := newTestNet(t, 1500)
	n.startServers()
	exchange := func() {
		t.Helper()
		for _, name := range []string{"4in4", "GUE 6in6", "rewrite none 4"} {
			n.exchange(t, find(t, name), 1<<20)
		}
	}
	// Attach foreign programs first. They pass no frame on to programs after them, as Cilium's do,
	// so ours have to be attached before them.
	first := map[hook]*foreign{}
	firstLinks := map[hook]link.Link{}
	for _, k := range hooks {
		first[k] = newForeign(t, foreignPass)
		firstLinks[k] = n.attachForeign(first[k], k.device, k.at, nil)
	}
	h := n.attach()
	n.guard(h, dataplane.GuardNetworks)
	ours := map[hook]ebpf.ProgramID{}
	order := func(when string, k hook, want ...ebpf.ProgramID) {
		t.Helper()
		if got := n.programsAt(k.device, k.at); !slices.Equal(got, want) {
			t.Errorf("%s: %s %s has programs %v, want %v", when, k.device, k.at, got, want)
		}
	}
	for _, k := range hooks {
		all := n.programsAt(k.device, k.at)
		if len(all) != 2 || all[1] != first[k].id() {
			t.Fatalf("%s %s has programs %v, want one before %d", k.device, k.at, all, first[k].id())
		}
		ours[k] = all[0]
	}
	exchange()
	for _, k := range hooks {
		// host_in delivers frames for servers, so that no program after it receives them. There may
		// be no other frames (neighbours) on the uplink.
		if k != hooks[0] && first[k].seen() == 0 {
			t.Errorf("%s %s: the program behind saw nothing", k.device, k.at)
		}
	}

	// Other programs are attached later, before ours, and pass frames on. Ours still run.
	later := map[hook]*foreign{}
	laterLinks := map[hook]link.Link{}
	for _, k := range hooks {
		later[k] = newForeign(t, foreignNext)
		laterLinks[k] = n.attachForeign(later[k], k.device, k.at, link.Head())
		order("one came in front", k, later[k].id(), ours[k], first[k].id())
	}
	before := reasonsOf(t, h)["in_delivered"]
	exchange()
	if now := reasonsOf(t, h)["in_delivered"]; now == before {
		t.Error("nothing was delivered with another program in front")
	}
	for _, k := range hooks {
		if later[k].seen() == 0 {
			t.Errorf("%s %s: the program in front saw nothing", k.device, k.at)
		}
	}

	// A new agent keeps the order of all programs.
	check(t, h.Close())
	h = n.attach()
	n.guard(h, dataplane.GuardNetworks)
	for _, k := range hooks {
		all := n.programsAt(k.device, k.at)
		if len(all) != 3 || all[1] == ours[k] {
			t.Fatalf("another agent: %s %s has programs %v, it was %d", k.device, k.at, all, ours[k])
		}
		ours[k] = all[1]
		order("another agent", k, later[k].id(), ours[k], first[k].id())
	}
	exchange()

	// Foreign programs are detached, ours stay.
	for _, k := range hooks {
		check(t, firstLinks[k].Close())
		order("one went", k, later[k].id(), ours[k])
	}
	exchange()

	// Filters of clsact receive the frames that no program consumed.
	filter := newForeign(t, foreignPass)
	pin := filepath.Join("/sys/fs/bpf", filepath.Base(n.dir)+"-filter")
	check(t, filter.program.Pin(pin))
	t.Cleanup(func() { filter.program.Unpin() })
	for _, k := range hooks {
		side := "ingress"
		if k.at == ebpf.AttachTCXEgress {
			side = "egress"
		}
		if side == "ingress" {
			n.command(n.host, "tc", "qdisc", "add", "dev", k.device, "clsact")
		}
		n.command(n.host, "tc", "filter", "add", "dev", k.device, side, "bpf", "direct-action", "object-pinned", pin)
	}
	exchange()
	if filter.seen() == 0 {
		t.Error("filters of clsact saw nothing")
	}

	// Ours are detached, foreign ones stay.
	check(t, h.Close())
	check(t, dataplane.DetachHost(n.dir))
	for _, k := range hooks {
		order("ours went", k, later[k].id())
	}
	seen, filtered := later[hooks[0]].seen(), filter.seen()
	n.command(n.client, "ping", "-c", "1", "-W", "30", router4)
	if later[hooks[0]].seen() == seen || filter.seen() == filtered {
		t.Error("the others' programs see nothing any more")
	}
	h = n.attach()
	n.guard(h, dataplane.GuardNetworks)
	for _, k := range hooks {
		check(t, laterLinks[k].Close())
		if all := n.programsAt(k.device, k.at); len(all) != 1 {
			t.Errorf("%s %s has programs %v, want ours alone", k.device, k.at, all)
		}
	}
	exchange()
}

// TestProgramsMayBeLast checks that foreign programs then run before ours.
func TestProgramsMayBeLast(t *testing.T) {
	n := newTestNet(t, 1500)
	n.startServers()
	others := map[hook]*foreign{}
	for _, k := range hooks {
		others[k] = newForeign(t, foreignNext)
		n.attachForeign(others[k], k.device, k.at, nil)
	}
	var h *dataplane.Host
	check(t, netdev.In(n.host, func() (err error) {
		h, err = dataplane.OpenHost(dataplane.HostOptions{Ifindex: ifindex(t, "up0"), Dir: n.dir, Last: true})
		return err
	}))
	t.Cleanup(func() { h.Close() })
	n.guard(h, dataplane.GuardStrict)
	for _, k := range hooks {
		if all := n.programsAt(k.device, k.at); len(all) != 2 || all[0] != others[k].id() {
			t.Errorf("%s %s has programs %v, want one behind %d", k.device, k.at, all, others[k].id())
		}
	}
	n.exchange(t, find(t, "4in4"), 1<<20)
	for _, k := range hooks {
		if others[k].seen() == 0 {
			t.Errorf("%s %s: the program in front saw nothing", k.device, k.at)
		}
	}
}
