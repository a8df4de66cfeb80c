package dataplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// repin puts another map in the place of a pinned one.
func (e *muxEnv) repin(name string, value uint32, fill func(from, to *ebpf.Map)) {
	e.t.Helper()
	e.attachForeign()
	path := filepath.Join(e.dir, muxPinTables, name)
	from, err := ebpf.LoadPinnedMap(path, nil)
	must(e.t, err)
	defer from.Close()
	to, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: from.Type(), KeySize: from.KeySize(), ValueSize: value, MaxEntries: from.MaxEntries(), Flags: from.Flags()})
	must(e.t, err)
	defer to.Close()
	fill(from, to)
	must(e.t, os.Remove(path))
	must(e.t, to.Pin(path))
}

// formerSessions makes pinned sessions and ports what they were before sequence numbers were followed.
func (e *muxEnv) formerSessions() {
	e.t.Helper()
	e.repin(muxMapNatSessions, formerNATSize, func(from, to *ebpf.Map) {
		var (
			key muxNatKey
			s   muxNatSession
		)
		const known = muxNatFlagNAT_ANSWERED | muxNatFlagNAT_TRUSTED | muxNatFlagNAT_FIN_CLIENT | muxNatFlagNAT_FIN_SERVER | muxNatFlagNAT_RESET |
			muxNatFlagNAT_STAMPS | muxNatFlagNAT_RESTORES | muxNatFlagNAT_CLOCK
		for it := from.Iterate(); it.Next(&key, &s); {
			must(e.t, to.Put(&key, &formerNATSession{
				s.LipHi, s.LipLo, s.DipHi, s.DipLo, s.Way, s.Mac, s.Tags, s.Ifindex, uint32(s.Life) & uint32(known), s.Stamp, s.Newest, s.Slot,
				s.Member, s.Cookie, s.Lport, s.Dport, 0,
			}))
		}
	})
	e.repin(muxMapNatPorts, 40, func(from, to *ebpf.Map) {
		var (
			key  muxNatKey
			name muxNatName
		)
		for it := from.Iterate(); it.Next(&key, &name); {
			must(e.t, to.Put(&key, &name.Client))
		}
	})
	must(e.t, os.Remove(filepath.Join(e.dir, muxPinTables, muxMapNatOpenings)))
	e.asABI(abiWithoutNumbers)
}

// TestNATOfFormerForm: sessions as they were before sequence numbers were followed go on, and their numbers are known by the server's next segment.
func TestNATOfFormerForm(t *testing.T) {
	e := newMuxEnv(t)
	f := e.natTraffic()
	e.formerSessions()
	var err error
	f.mux, err = e.open(XDPNative)
	must(t, err)
	if f.mux.former == nil {
		t.Fatal("tables of another form were adopted")
	}
	must(t, e.applyIn(f.mux, f.model.state))
	e.whole()
	for _, s := range f.sessions {
		s.numbered = false
		s.fromClient, s.fromServer = natModelSide{done: s.fromClient.done}, natModelSide{done: s.fromServer.done}
	}
	f.compareTables()
	if n := f.untrusted(); n != len(f.waiting) {
		t.Errorf("%d sessions wait for trust, there should be %d", n, len(f.waiting))
	}
	c := f.talk(false, 1001) // of tcp, and answered
	if s := f.sessions[c.flow]; s != nil {
		c.lip, c.server = s.lip, s.server
		c.play(`
			> R 700 0 0 untrusted
			> R 8 0 0 untrusted
			< RA 6 8 0 untrusted
			> FA 700 5 0 untrusted
			< A 300 700 20 untrusted
			> R 699 0 0 untrusted
			> A 700 320 10 trusted
			< A 320 710 0 trusted
			> R 709 0 0 trusted
			> R 710 0 0 closing`)
	} else {
		t.Error("there is no session to go on with")
	}
	f.goOn()
	must(t, f.mux.Close())
}

// TestNATOfUnknownForm: sessions of a form that nobody knows are refused, and the program that has them goes on.
func TestNATOfUnknownForm(t *testing.T) {
	e := newMuxEnv(t)
	must(t, e.natTraffic().mux.Close())
	e.repin(muxMapNatSessions, 96, func(_, _ *ebpf.Map) {})
	m, err := e.open(XDPNative)
	if err == nil {
		m.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "sessions of path nat have 96 bytes, this binary reads 88 and 120") {
		t.Errorf("got %v", err)
	}
	if !e.attached() {
		t.Error("no program is attached")
	}
}
