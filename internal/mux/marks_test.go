package mux

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

func markKey(i int) lb.EndpointKey {
	return lb.EndpointKey{VIP: netip.MustParseAddr("2001:db8:f::10"), Protocol: lb.TCP, Port: uint16(80 + i)}
}

// TestMarksOutliveTheAgent: logged decisions are read again, also when the file ends in the middle
// of a line or was rewritten.
func TestMarksOutliveTheAgent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "marks")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		open := func() *marks {
			m, err := openMarks(dir)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		m, want := open(), map[int]mark{}
		for range rapid.IntRange(1, 20).Draw(t, "events") {
			switch rapid.IntRange(0, 4).Draw(t, "event") {
			case 0:
				if rapid.Bool().Draw(t, "torn") {
					f, err := os.OpenFile(filepath.Join(dir, marksFile), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
					if err != nil {
						t.Fatal(err)
					}
					f.WriteString(markName(markKey(0)) + " panics 9")
					f.Close()
				}
				m = open()
			case 1:
				groups := map[lb.EndpointKey]*group{}
				for i := range 4 {
					if rapid.Bool().Draw(t, "stays") {
						groups[markKey(i)] = &group{}
					} else {
						delete(want, i)
					}
				}
				m.prune(groups)
			case 2:
				m.lines = 2*len(m.set) + marksSlack
			default:
				for range rapid.IntRange(1, 3).Draw(t, "puts") {
					i := rapid.IntRange(0, 3).Draw(t, "endpoint")
					w := mark{Decision: health.Decision{FailOpen: rapid.Bool().Draw(t, "open"), Panic: rapid.Bool().Draw(t, "panic"), Backup: rapid.Bool().Draw(t, "backup")}}
					if w.Open() {
						w.alive = rapid.SliceOfN(rapid.Uint16(), 0, 3).Draw(t, "alive")
					}
					if len(w.alive) == 0 {
						w.alive = nil
					}
					m.put(markKey(i), w)
					want[i] = w
				}
			}
			if err := m.flush(); err != nil {
				t.Fatal(err)
			}
			for _, reader := range []*marks{m, open()} {
				for i := range 4 {
					if got := reader.read(markKey(i)); !reflect.DeepEqual(got, want[i]) {
						t.Fatalf("endpoint %d: %+v, expected %+v", i, got, want[i])
					}
				}
			}
		}
	})
}

// TestMarksOfAFormerVersion: files of an earlier version are converted once.
func TestMarksOfAFormerVersion(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"fail-open/" + markName(markKey(0)): "1\n20\n", "fail-open/" + markName(markKey(1)): "", "backup/" + markName(markKey(1)): "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		m, err := openMarks(dir)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []mark{
			{Decision: health.Decision{FailOpen: true}, alive: []uint16{1, 20}}, {Decision: health.Decision{FailOpen: true, Backup: true}}, {},
		} {
			if got := m.read(markKey(i)); !reflect.DeepEqual(got, want) {
				t.Errorf("endpoint %d: %+v, expected %+v", i, got, want)
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("left %v, error %v", entries, err)
		}
	}
}
