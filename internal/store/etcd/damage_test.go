package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// dataOf returns the files of a member.
func dataOf(t *testing.T, dir string) (db, log string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	return filepath.Join(dir, "member", "snap", "db"), logs[len(logs)-1]
}

// change rewrites a file.
func change(t *testing.T, path string, f func([]byte) []byte) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, f(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// noise overwrites n bytes at the place.
func noise(at, n int) func([]byte) []byte {
	return func(b []byte) []byte {
		r := rand.New(rand.NewPCG(uint64(at), uint64(n)))
		for i := at; i < min(at+n, len(b)); i++ {
			b[i] = byte(r.Uint32())
		}
		return b
	}
}

// TestDamagedMember: a member of three with damaged files does not start, and its message describes
// the repair. After the repair, under writes, the new member has all data.
func TestDamagedMember(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	for i := range 400 {
		put(t, g.members[0], fmt.Sprintf("/a/%d", i), strings.Repeat("unmistakable ", 40))
	}
	broken := g.options[2]
	intact := broken.Dir + ".intact"
	g.members[2].Close()
	if err := os.Rename(broken.Dir, intact); err != nil {
		t.Fatal(err)
	}
	// The others continue, so that there is data to catch up with.
	put(t, g.members[0], "/a/later", "unmistakable")
	for name, damage := range map[string]func(t *testing.T, db, log string){
		"middle of the log":     func(t *testing.T, _, log string) { change(t, log, noise(20_000, 4096)) },
		"beginning of the log":  func(t *testing.T, _, log string) { change(t, log, noise(0, 512)) },
		"no log":                func(t *testing.T, _, log string) { os.Remove(log) },
		"empty log":             func(t *testing.T, _, log string) { change(t, log, func([]byte) []byte { return nil }) },
		"first pages of the db": func(t *testing.T, db, _ string) { change(t, db, noise(0, 2*4096)) },
		"empty db":              func(t *testing.T, db, _ string) { change(t, db, func([]byte) []byte { return nil }) },
		"half of the db":        func(t *testing.T, db, _ string) { change(t, db, func(b []byte) []byte { return b[:len(b)/8] }) },
		"all but first pages of the db": func(t *testing.T, db, _ string) {
			change(t, db, noise(4*4096, 1<<30))
		},
		// This breaks no rule of the file's format: only the other members can detect it.
		"a value in the db": func(t *testing.T, db, _ string) {
			change(t, db, func(b []byte) []byte {
				return bytes.ReplaceAll(b, []byte("unmistakable"), []byte("unmistakeble"))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &memberProcess{Dir: filepath.Join(t.TempDir(), "etcd"), Name: "m3", Peer: broken.Peer, TLS: broken.TLS}
			if err := os.CopyFS(p.Dir, os.DirFS(intact)); err != nil {
				t.Fatal(err)
			}
			db, log := dataOf(t, p.Dir)
			damage(t, db, log)
			if said := p.fails(t); !strings.Contains(said, errDamaged.Error()) || !strings.Contains(said, "shunt member remove") {
				t.Errorf("it said: %s", said)
			}
		})
	}
	g.replace(t, 2)
}

// replace removes member i and joins a new one with its name and an empty directory, while others
// write.
func (g *group) replace(t *testing.T, i int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	count := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			op := store.Put(fmt.Sprintf("/during/%d", n), nil)
			if _, err := g.members[0].Txn(context.Background(), store.Txn{Ops: []store.Op{op}}); err != nil {
				t.Errorf("write %d: %v", n, err)
				break
			}
		}
		count <- n
	}()
	if err := g.members[0].Remove(ctx, g.options[i].Name); err != nil {
		t.Fatal(err)
	}
	o := g.options[i]
	o.Dir, o.bootstrap = filepath.Join(t.TempDir(), "etcd"), ""
	var err error
	if o.Cluster, err = g.members[1].Add(ctx, o.Name, o.Peer); err != nil {
		t.Fatal(err)
	}
	g.options[i] = o
	m := g.start(i)
	stop()
	n := <-count
	snap, err := m.List(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	other, err := g.members[0].List(t.Context(), "/")
	if err != nil || len(snap.KVs) != len(other.KVs) || len(snap.KVs) < n+401 {
		t.Fatalf("the new one has %d keys, another %d, %v; %d were written meanwhile", len(snap.KVs), len(other.KVs), err, n)
	}
	// It votes, so another member may fail.
	g.members[1].Close()
	put(t, m, "/without the second", "")
}

// TestDamagedAlone: without others the message describes the repair. No damage ends the process.
func TestDamagedAlone(t *testing.T) {
	t.Parallel()
	o := Options{Dir: filepath.Join(t.TempDir(), "intact"), UnsafeNoFsync: true}
	m, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		put(t, m, fmt.Sprintf("/a/%d", i), strings.Repeat("v", 1000))
	}
	m.Close()
	db, _ := dataOf(t, o.Dir)
	info, err := os.Stat(db)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for page := 2; page < int(info.Size()/4096); page += 7 {
		damaged := o
		damaged.Dir = filepath.Join(t.TempDir(), "etcd")
		if err := os.CopyFS(damaged.Dir, os.DirFS(o.Dir)); err != nil {
			t.Fatal(err)
		}
		db, _ := dataOf(t, damaged.Dir)
		change(t, db, noise(page*4096, 4096))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		m, err := Open(ctx, damaged)
		if err == nil {
			m.Close() // an unreferenced page
		} else if refused++; !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), "restore a backup") {
			t.Errorf("page %d: %v", page, err)
		}
		cancel()
	}
	if refused == 0 {
		t.Error("no damage was found")
	}
	t.Logf("%d of %d damaged pages were in use", refused, (info.Size()/4096-2+6)/7)
}
