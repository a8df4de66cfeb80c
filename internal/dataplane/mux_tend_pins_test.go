package dataplane

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"golang.org/x/sys/unix"
)

// tend runs Tend in the environment's namespace.
func (e *muxEnv) tend(m *Mux) (mended string) {
	e.t.Helper()
	must(e.t, netdev.In(e.namespace, func() (err error) {
		mended, err = m.Tend(e.ifindex)
		return err
	}))
	return mended
}

// TestRemovedPinsAreRestored removes pins in several ways, twice each. The next agent must adopt the same tables, flows included.
func TestRemovedPinsAreRestored(t *testing.T) {
	for name, remove := range map[string]func(t *testing.T, e *muxEnv){
		"directory of the tables": func(t *testing.T, e *muxEnv) { must(t, os.RemoveAll(filepath.Join(e.dir, muxPinTables))) },
		"one table":               func(t *testing.T, e *muxEnv) { must(t, os.Remove(filepath.Join(e.dir, muxPinTables, muxMapFlows))) },
		"all": func(t *testing.T, e *muxEnv) {
			must(t, os.RemoveAll(filepath.Join(e.dir, muxPinTables)))
			must(t, os.RemoveAll(e.dir))
		},
		"file system": func(t *testing.T, e *muxEnv) {
			must(t, unix.Unmount(e.dir, unix.MNT_DETACH))
			must(t, unix.Mount("bpf", e.dir, "bpf", 0, "mode=0700"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newMuxEnv(t)
			if name == "file system" {
				// Another mount of the file system, below a directory that is no bpf file system: that of other tests must stay.
				e.dir = t.TempDir()
				must(t, unix.Mount("bpf", e.dir, "bpf", 0, "mode=0700"))
				t.Cleanup(func() {
					DetachMux(e.dir)
					must(t, unix.Unmount(e.dir, unix.MNT_DETACH))
				})
			}
			m, err := e.open(XDPNative)
			must(t, err)
			defer func() { m.Close() }()
			f := &muxFixture{t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress}}
			s := basicState()
			for i := range s.Endpoints {
				if s.Endpoints[i].Key.Protocol != 0 && s.Endpoints[i].Key.PortEnd == 0 {
					s.Endpoints[i].Affinity, s.Endpoints[i].Idle = AffinityFlow, lb.Idle{Untrusted: 30 * time.Second, Trusted: 300 * time.Second}
				}
			}
			f.apply(s)
			f.setHops(hopsTo(s))
			forward := func() {
				for _, c := range forwardCases() {
					f.run(c.frame)
				}
			}
			forward()
			flows := func() (all []uint64) {
				for b := range m.memory.flows {
					for _, entry := range m.memory.flows[b].Entries {
						if entry != 0 {
							all = append(all, entry)
						}
					}
				}
				return all
			}
			before := flows()
			if len(before) == 0 {
				t.Fatal("no flow is remembered: nothing to lose")
			}
			for range 2 {
				remove(t, e)
				if got := e.tend(m); got == "" {
					t.Fatal("nothing was reported as restored")
				}
				missing, err := badPins(filepath.Join(e.dir, muxPinTables), m.objects.byName(), nil)
				if err != nil || len(missing) > 0 || !e.attached() {
					t.Fatalf("bad pins %q, attached %v, error %v", missing, e.attached(), err)
				}
				if got := e.tend(m); got != "" {
					t.Fatalf("restored again: %s", got)
				}
			}
			counted, err := m.Counters()
			must(t, err)
			must(t, m.Close())
			m, err = e.open(XDPNative)
			must(t, err)
			adopted, err := m.Counters()
			must(t, err)
			if !maps.Equal(adopted.Members, counted.Members) || !slices.Equal(flows(), before) {
				t.Errorf("the next agent has other tables: counters %v, then %v; %d flows, then %d", counted.Members, adopted.Members, len(before), len(flows()))
			}
			if alive, _ := m.Alive(lb.EndpointKey(s.Endpoints[0].Key), 0); !alive {
				t.Error("the next agent did not adopt the endpoints")
			}
		})
	}
}
