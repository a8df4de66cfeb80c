package dataplane

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/netdev"
)

// muxPair is an environment with a second interface.
type muxPair struct{ *muxEnv }

func newMuxPair(t *testing.T) muxPair {
	e := muxPair{newMuxEnv(t)}
	e.ip("link add up2 type veth peer name up3")
	return e
}

func (e muxPair) ip(arguments string) {
	e.t.Helper()
	if out, err := exec.Command("ip", slices.Concat([]string{"-n", e.namespace}, strings.Fields(arguments))...).CombinedOutput(); err != nil {
		e.t.Fatalf("ip %s: %v %s", arguments, err, out)
	}
}

// second is the number of the second interface.
func (e muxPair) second() (found int) {
	e.t.Helper()
	must(e.t, netdev.In(e.namespace, func() error {
		i, err := netdev.FindInterface("up2")
		found = i.Index
		return err
	}))
	return found
}

// openBoth is openSized for both interfaces.
func (e muxPair) openBoth(limits MuxLimits, step func(string) error) (m *Mux) {
	e.t.Helper()
	must(e.t, netdev.In(e.namespace, func() (err error) {
		m, err = OpenMux(MuxOptions{Ifindex: e.ifindex, Others: []int{e.second()}, BPFFS: e.dir, Limits: limits, Address: muxSelf,
			testStep: step, DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }})
		return err
	}))
	return m
}

// runs checks that both interfaces run a program.
func (e muxPair) runs(m *Mux, p *ebpf.Program) {
	e.t.Helper()
	info, err := p.Info()
	must(e.t, err)
	want, _ := info.ID()
	if len(m.others) != 1 {
		e.t.Fatalf("%d further interfaces, expected 1", len(m.others))
	}
	for _, l := range []link.Link{m.link, m.others[e.second()]} {
		info, err := l.Info()
		must(e.t, err)
		if info.Program != want || info.XDP().Ifindex == 0 {
			e.t.Errorf("interface %d runs program %d, expected %d", info.XDP().Ifindex, info.Program, want)
		}
	}
}

// TestMigrationOfTwoInterfaces: it may die between them, and both run the new program after the next start.
func TestMigrationOfTwoInterfaces(t *testing.T) {
	for _, last := range []string{"", "pinned", "first", "switched", "counted"} {
		t.Run("dies at "+last, func(t *testing.T) {
			e := newMuxPair(t)
			s, counted := e.traffic()
			old := e.openBoth(testLimits, nil)
			e.runs(old, old.Program())
			must(t, old.Close())
			died := errors.New("died")
			m := e.openBoth(larger(), func(step string) error {
				if step == last {
					return died
				}
				return nil
			})
			defer func() { m.Close() }()
			if err := e.applyIn(m, s); (last != "") != errors.Is(err, died) {
				t.Fatalf("applied: %v", err)
			}
			if last != "" {
				must(t, m.Close())
				m = e.openBoth(larger(), nil)
				must(t, e.applyIn(m, s))
			}
			e.runs(m, m.Program())
			e.whole()
			after, err := m.Counters()
			must(t, err)
			sameCounts(t, after, counted)
		})
	}
}

// TestMigrationWithoutTheSecondInterface: it goes on with the first, and the second one is mended when it is there again.
func TestMigrationWithoutTheSecondInterface(t *testing.T) {
	e := newMuxPair(t)
	s, counted := e.traffic()
	must(t, e.openBoth(testLimits, nil).Close())
	m := e.openBoth(larger(), nil)
	defer func() { m.Close() }()
	e.ip("link del up2")
	must(t, e.applyIn(m, s))
	e.whole()
	after, err := m.Counters()
	must(t, err)
	sameCounts(t, after, counted)
	e.ip("link add up2 type veth peer name up3")
	must(t, netdev.In(e.namespace, func() error {
		_, err := m.Tend(e.ifindex, e.second())
		return err
	}))
	e.runs(m, m.Program())
}

// TestWatchOutlivesItsInterfaces: a program that watches comes back to interfaces that are made again.
func TestWatchOutlivesItsInterfaces(t *testing.T) {
	e := newMuxPair(t)
	m := e.openBoth(testLimits, nil)
	defer func() { m.Close() }()
	w, err := m.Watch(WatchFilter{VIP: muxVIP4, Snaplen: 64, SentSnaplen: 64})
	must(t, err)
	e.runs(m, w.Program())
	for _, again := range []string{"up0", "up2"} {
		e.ip("link del " + again)
		e.ip("link add " + again + " type veth peer name " + map[string]string{"up0": "up1", "up2": "up3"}[again])
		must(t, netdev.In(e.namespace, func() error {
			first, err := netdev.FindInterface("up0")
			must(t, err)
			e.ifindex = first.Index
			_, err = m.Tend(first.Index, e.second())
			return err
		}))
		e.runs(m, w.Program())
	}
	must(t, w.Close())
	e.runs(m, m.Program())
	// And a start of the agent ends a watch that its agent did not.
	_, err = m.Watch(WatchFilter{VIP: muxVIP4, Snaplen: 64, SentSnaplen: 64})
	must(t, err)
	must(t, m.Close())
	m = e.openBoth(testLimits, nil)
	e.runs(m, m.Program())
}

// TestPinsComeBack: all pins are removed under a running agent, and the next one finds its tables.
func TestPinsComeBack(t *testing.T) {
	e := newMuxPair(t)
	s, counted := e.traffic()
	m := e.openBoth(testLimits, nil)
	must(t, e.applyIn(m, s))
	tend := func() (mended string) {
		must(t, netdev.In(e.namespace, func() (err error) {
			mended, err = m.Tend(e.ifindex, e.second())
			return err
		}))
		return mended
	}
	must(t, os.RemoveAll(e.dir))
	if got := tend(); got == "" {
		t.Error("nothing mended")
	}
	if got := tend(); got != "" {
		t.Errorf("nothing happened since, but it mended %q", got)
	}
	e.whole()
	must(t, m.Close())
	m = e.openBoth(testLimits, nil)
	defer m.Close()
	e.runs(m, m.Program())
	after, err := m.Counters()
	must(t, err)
	sameCounts(t, after, counted)
}
