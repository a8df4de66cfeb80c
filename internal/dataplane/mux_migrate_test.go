package dataplane

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// larger are other sizes than testLimits.
func larger() MuxLimits {
	l := testLimits
	l.Endpoints, l.Members, l.Flows = 2*l.Endpoints, 2*l.Members, 2*l.withDefaults().Flows
	return l
}

// openSized opens the mux with tables of other sizes; step is MuxOptions.testStep.
func (e *muxEnv) openSized(limits MuxLimits, step func(string) error) (m *Mux, err error) {
	e.t.Helper()
	err = netdev.In(e.namespace, func() error {
		m, err = OpenMux(MuxOptions{Ifindex: e.ifindex, BPFFS: e.dir, Limits: limits, Address: muxSelf, testStep: step,
			DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }})
		return err
	})
	return m, err
}

// applyIn applies in the namespace, where a migration attaches.
func (e *muxEnv) applyIn(m *Mux, s MuxState) error {
	e.t.Helper()
	return netdev.In(e.namespace, func() error { return m.Apply(s) })
}

// traffic fills fresh tables, kills a member, counts packets, and closes. It returns the state and what was counted.
func (e *muxEnv) traffic() (MuxState, MuxCounters) {
	e.t.Helper()
	m, err := e.open(XDPNative)
	must(e.t, err)
	f := &muxFixture{e.t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}}
	s := basicState()
	f.apply(s)
	f.setHops(hopsTo(s))
	f.setAlive(MemberAlive{s.Endpoints[0].Key, 1, false})
	for _, c := range forwardCases() {
		f.check(c.frame)
	}
	counted, err := m.Counters()
	must(e.t, err)
	must(e.t, m.Close())
	return s, counted
}

// whole checks that exactly one set is pinned, and that the attached program works with it.
func (e *muxEnv) whole() {
	e.t.Helper()
	for _, name := range muxSets {
		_, err := os.Stat(filepath.Join(e.dir, name))
		if there := err == nil; there != (name == muxPinTables) {
			e.t.Errorf("pins %s: there %v", name, there)
		}
	}
	if uses, err := programUses(e.dir, muxPinTables); err != nil || !uses {
		e.t.Errorf("the program works with the pinned tables: %v, %v", uses, err)
	}
}

// sameCounts compares counters of packets and reasons.
func sameCounts(t *testing.T, got, want MuxCounters) {
	t.Helper()
	sameMap(t, got.Members, want.Members)
	sameMap(t, got.Endpoints, want.Endpoints)
	for _, c := range []MuxCounters{got, want} {
		// The kernel sends multicast frames of its own.
		delete(c.Reasons, "pass_other_mac")
		delete(c.Reasons, "pass_not_ours")
	}
	sameMap(t, got.Reasons, want.Reasons)
}

func sameMap[K, V comparable](t *testing.T, got, want map[K]V) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("counter %v: %v, expected %v", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d counters, expected %d", len(got), len(want))
	}
}

// TestMuxMigratesToOtherSizes: the old program goes on until the first plan, and nothing it knew is lost.
func TestMuxMigratesToOtherSizes(t *testing.T) {
	e := newMuxEnv(t)
	s, counted := e.traffic()
	m, err := e.openSized(larger(), nil)
	must(t, err)
	defer func() { m.Close() }()
	if uses, err := programUses(e.dir, muxPinTables); err != nil || !uses {
		t.Fatalf("before a plan the old program was replaced: %v", err)
	}
	if alive, known := m.Alive(s.Endpoints[0].Key, 1); alive || !known {
		t.Errorf("the dead member: alive %v, known %v", alive, known)
	}
	before, err := m.Counters()
	must(t, err)
	sameCounts(t, before, counted)

	s.Endpoints[0].Members[1].Alive = false
	must(t, e.applyIn(m, s))
	e.whole()
	after, err := m.Counters()
	must(t, err)
	sameCounts(t, after, counted)
	f := &muxFixture{t, m, &muxModel{state: s, alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress, hops: hopsTo(s)}}
	for _, w := range s.Endpoints {
		for _, member := range w.Members {
			f.model.alive[MemberKey{w.Key, member.ID}] = member.Alive
		}
	}
	for _, c := range forwardCases() {
		f.check(c.frame) // by the next hops that were taken over
	}
	counted, err = m.Counters()
	must(t, err)
	must(t, m.Close())

	// And back.
	m, err = e.open(XDPNative)
	must(t, err)
	must(t, e.applyIn(m, s))
	e.whole()
	after, err = m.Counters()
	must(t, err)
	sameCounts(t, after, counted)
}

// TestMuxMigrationMayDieAnywhere: whatever step a migration dies at, a program with a whole set of tables forwards, and
// the next start ends or repeats the migration with all counters.
func TestMuxMigrationMayDieAnywhere(t *testing.T) {
	for _, last := range []string{"filled", "pinned", "switched", "counted", "renamed", "moved"} {
		t.Run(last, func(t *testing.T) {
			e := newMuxEnv(t)
			s, counted := e.traffic()
			died := errors.New("died")
			m, err := e.openSized(larger(), func(step string) error {
				if step == last {
					return died
				}
				return nil
			})
			must(t, err)
			if err := e.applyIn(m, s); !errors.Is(err, died) {
				t.Fatalf("applied: %v", err)
			}
			if !e.attached() {
				t.Fatal("no program is attached")
			}
			if last == "counted" || last == "renamed" {
				// It failed there, and its agent lives on.
				last = ""
				must(t, e.applyIn(m, s))
				e.whole()
				after, err := m.Counters()
				must(t, err)
				sameCounts(t, after, counted)
			}
			must(t, m.Close())
			m, err = e.openSized(larger(), nil)
			must(t, err)
			defer m.Close()
			if alive, known := m.Alive(s.Endpoints[0].Key, 0); !alive || !known {
				t.Errorf("a live member: alive %v, known %v", alive, known)
			}
			must(t, e.applyIn(m, s))
			e.whole()
			after, err := m.Counters()
			must(t, err)
			sameCounts(t, after, counted)
		})
	}
}

// TestMuxPlanThatDoesNotFitKeepsTheOldProgram: tables too small for the plan never get the traffic.
func TestMuxPlanThatDoesNotFitKeepsTheOldProgram(t *testing.T) {
	e := newMuxEnv(t)
	s, _ := e.traffic()
	small := testLimits
	small.Endpoints = 2
	m, err := e.openSized(small, nil)
	must(t, err)
	defer m.Close()
	if err := e.applyIn(m, s); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("got %v", err)
	}
	e.whole()
}

// pinABI1 pins tables of ABI version 1 with one endpoint of two members, the second dead, and attaches a program to them.
func pinABI1(e *muxEnv, key lb.EndpointKey) {
	e.t.Helper()
	made := map[string]*ebpf.Map{}
	table := func(name string, kind ebpf.MapType, size, n uint32) *ebpf.Map {
		flags := uint32(0)
		if kind == ebpf.Array {
			flags = 1 << 10 // BPF_F_MMAPABLE
		}
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: kernelName(name), Type: kind, KeySize: 4, ValueSize: size, MaxEntries: n, Flags: flags})
		must(e.t, err)
		made[name] = m
		return m
	}
	words := func(size int, at map[int]uint64) []byte {
		b := make([]byte, size)
		for i, w := range at {
			binary.NativeEndian.PutUint64(b[i:], w)
		}
		return b
	}
	vip, dip := key.VIP.As16(), basicState().Endpoints[0].Members[0].Outer.As16()
	slot := words(32, map[int]uint64{16: endpointKeyWord(key), 24: 2 + 5})
	copy(slot, vip[:])
	must(e.t, table(muxMapEndpointSlots, ebpf.Array, 32, 16).Put(uint32(3), slot))
	must(e.t, table(abi1Endpoints, ebpf.Array, 64, 8).Put(uint32(5), words(64, map[int]uint64{8: 4 | 2<<32})))
	members := table(muxMapMembers, ebpf.Array, 8, 16)
	must(e.t, members.Put(uint32(4), memberWord(1, true, true)))
	must(e.t, members.Put(uint32(5), memberWord(1, true, false)))
	backend := words(64, map[int]uint64{16: macWord(muxRouter) | 2<<48 | 1<<63})
	copy(backend, dip[:])
	must(e.t, table(muxMapBackends, ebpf.Array, 64, 4).Put(uint32(1), backend))
	must(e.t, table(muxMapDevices, ebpf.Array, 16, 16).Put(uint32(2), words(16, map[int]uint64{8: ingress})))
	must(e.t, table(muxMapConfigs, ebpf.Array, 64, 1).Put(uint32(0), words(64, map[int]uint64{0: 1})))
	table(muxMapRings, ebpf.Array, 8, 16)
	perCPU := func(n uint64) []muxCounter {
		out := make([]muxCounter, ebpf.MustPossibleCPU())
		out[0] = muxCounter{Packets: n, Bytes: 100 * n}
		return out
	}
	must(e.t, table(muxMapEndpointCounts, ebpf.PerCPUArray, 16, 8).Put(uint32(5), perCPU(9)))
	must(e.t, table(muxMapMemberCounts, ebpf.PerCPUArray, 16, 16).Put(uint32(4), perCPU(7)))
	reasons := make([]uint64, ebpf.MustPossibleCPU())
	reasons[0] = 7
	must(e.t, table(muxMapReasons, ebpf.PerCPUArray, 8, 64).Put(uint32(0), reasons))
	must(e.t, EnsureBPFFS(e.dir))
	must(e.t, pinMaps(e.dir, muxPinTables, made, slog.New(slog.DiscardHandler)))
	closeMaps(made)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: muxProgMux, Type: ebpf.XDP, AttachType: ebpf.AttachXDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}, License: "GPL"})
	must(e.t, err)
	defer program.Close()
	must(e.t, netdev.In(e.namespace, func() error {
		l, err := attachXDP(program, e.ifindex, XDPNative, filepath.Join(e.dir, muxPinLink), slog.New(slog.DiscardHandler))
		if err == nil {
			l.Close()
		}
		return err
	}))
}

// TestMuxMigratesABI1: health, counters and next hops of the first version's tables are taken over.
func TestMuxMigratesABI1(t *testing.T) {
	e := newMuxEnv(t)
	s := basicState()
	s.Endpoints = s.Endpoints[:1]
	key := s.Endpoints[0].Key
	pinABI1(e, key)
	m, err := e.open(XDPNative)
	must(t, err)
	defer m.Close()
	one, known := m.Alive(key, 0)
	two, knownToo := m.Alive(key, 1)
	if _, third := m.Alive(key, 2); !one || two || !known || !knownToo || third {
		t.Errorf("members alive %v %v, known %v %v, a third %v", one, two, known, knownToo, third)
	}
	outer := s.Endpoints[0].Members[0].Outer
	if got := m.former.hops[outer]; got != (NextHop{MAC: muxRouter, Ifindex: ingress}) {
		t.Errorf("next hop %v", got)
	}
	must(t, e.applyIn(m, s))
	e.whole()
	c, err := m.Counters()
	must(t, err)
	if c.Members[MemberKey{key, 0}] != (Counter{7, 700}) || c.Endpoints[key] != (Counter{9, 900}) || c.Reasons["forwarded"] != 7 {
		t.Errorf("counters %v", c)
	}
}
