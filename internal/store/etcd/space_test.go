package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// smallDisk mounts a disk of size MiB for one test.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes a file that leaves so many MiB free on the disk.
func fill(t *testing.T, dir string, leave uint64) (file string) {
	t.Helper()
	file = filepath.Join(dir, "somebody's file")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		free, err := freeSpace(dir)
		if err != nil {
			t.Fatal(err)
		}
		if free <= leave<<20 {
			return file
		}
		if _, err := f.Write(make([]byte, min(1<<20, free-leave<<20))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDiskFull: a member whose disk is full stops and reports that, loses no data, and continues
// when there is space.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 200)
	p := &memberProcess{Dir: filepath.Join(disk, "etcd"), Name: "m1", Do: "write", LowDisk: 1}
	p.start(t)
	p.acknowledged(100)
	file := fill(t, disk, 1)
	count, last := p.acknowledged(-1)
	p.cmd.Wait()
	if !strings.HasPrefix(last, "failed: ") || !strings.Contains(last, "no space left on device") || p.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("with a full disk it ended with %v and said: %s", p.cmd.ProcessState, last)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	m, err := Open(t.Context(), Options{Dir: p.Dir, Name: p.Name})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	written(t, m, p, count)
	put(t, m, "/a", "it goes on")
}

// TestNoRoomToStart: a disk that is too small is not reported as damage, because nothing has to be
// restored.
func TestNoRoomToStart(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 20)
	fill(t, disk, 4)
	m, err := Open(t.Context(), Options{Dir: filepath.Join(disk, "etcd"), Name: "m1"})
	if err == nil {
		m.Close()
	}
	if !errors.Is(err, store.ErrNoSpace) || errors.Is(err, errDamaged) {
		t.Errorf("opened with %v", err)
	}
}

// refusedAndBack writes until a write is refused for lack of space, checks that other operations
// work, frees space and waits until writes are accepted again.
func refusedAndBack(t *testing.T, m *Member, write func(i int) store.Txn, room func()) {
	t.Helper()
	id, err := m.Grant(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	kept := make(chan error, 1)
	go func() { kept <- m.KeepAlive(ctx, id) }()
	if _, err := m.Txn(t.Context(), store.Txn{Ops: []store.Op{{Key: "/leased", Lease: id}, store.Put("/a", []byte("kept"))}}); err != nil {
		t.Fatal(err)
	}
	i := 0
	for err == nil {
		_, err = m.Txn(t.Context(), write(i))
		i++
	}
	if !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("write %d: %v", i, err)
	}
	if value(t, m, "/a") != "kept" {
		t.Error("what was there cannot be read")
	}
	if err := m.Renew(t.Context(), id); err != nil {
		t.Errorf("renew: %v", err)
	}
	if _, err := m.Grant(t.Context(), 2*time.Second); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("grant: %v", err)
	}
	room()
	back(t, m)
	if kv, ok, _, err := m.Get(t.Context(), "/leased"); err != nil || !ok {
		t.Errorf("the lease that was kept alive: %+v %v %v", kv, ok, err)
	}
	stop()
	if err := <-kept; !errors.Is(err, context.Canceled) {
		t.Errorf("keep alive: %v", err)
	}
}

// back waits until the member accepts writes again.
func back(t *testing.T, m *Member) {
	t.Helper()
	for {
		_, err := m.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/a", []byte("back"))}})
		if err == nil {
			return
		}
		if !errors.Is(err, store.ErrNoSpace) {
			t.Fatal(err)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the test ends")
		}
	}
}

// TestDiskNearlyFull: a lone member refuses writes before its disk is full, and everything else
// continues.
func TestDiskNearlyFull(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 320)
	m, err := Open(t.Context(), Options{Dir: filepath.Join(disk, "etcd"), tend: tendLimits{every: 5 * time.Millisecond, lowDisk: 64 << 20, defragmentFrom: 1 << 40}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { m.Close() }()
	var file string
	refusedAndBack(t, m, func(i int) store.Txn {
		if i == 0 {
			file = fill(t, disk, 62)
		}
		return store.Txn{Ops: []store.Op{store.Put("/b", nil)}}
	}, func() { os.Remove(file) })
	// Restarted on a nearly full disk, it can start its work, then refuses writes again.
	o := Options{Dir: m.dir, tend: m.limits}
	fill(t, disk, 62)
	for err = nil; err == nil; {
		_, err = m.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/b", nil)}})
	}
	m.Close()
	o.tend.every = time.Hour
	if m, err = Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	put(t, m, "/b", "")
	if full, err := m.tendSpace(t.Context()); err != nil || !full {
		t.Errorf("at the next look: full %v, %v", full, err)
	}
	if _, err := m.Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/b", nil)}}); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("after it: %v", err)
	}
}

// TestQuota: a database that is too large accepts deletions, and writes again when these have freed
// space; on all members.
func TestQuota(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			g := newGroupWith(t, n, func(o *Options) {
				o.quota = 12 << 20
				o.tend = tendLimits{every: 50 * time.Millisecond, defragmentFrom: 1 << 40}
			})
			written := 0
			refusedAndBack(t, g.members[n-1], func(i int) store.Txn {
				written = i
				return store.Txn{Ops: []store.Op{store.Put(fmt.Sprintf("/large/%d", i), make([]byte, 100_000))}}
			}, func() {
				var txn store.Txn
				for i := range written {
					txn.Ops = append(txn.Ops, store.Delete(fmt.Sprintf("/large/%d", i)))
				}
				if _, err := g.members[0].Txn(t.Context(), txn); err != nil {
					t.Fatal(err)
				}
			})
			for _, m := range g.members {
				back(t, m) // each ends its own alarm, possibly late
			}
		})
	}
}

// TestLargeHistoryIsCompacted: values that are rewritten repeatedly do not fill the database,
// whatever auto compaction keeps.
func TestLargeHistoryIsCompacted(t *testing.T) {
	t.Parallel()
	g := newGroupWith(t, 3, func(o *Options) {
		o.quota = 12 << 20
		o.tend = tendLimits{every: time.Hour, defragmentFrom: 1 << 40}
	})
	for i := range 2400 {
		_, err := g.members[0].Txn(t.Context(), store.Txn{Ops: []store.Op{store.Put("/large", []byte(strings.Repeat(fmt.Sprint(i%10), 10_000)))}})
		if err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
		if i%100 == 0 {
			for _, m := range g.members {
				if err := m.tendHistory(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestDefragment: a database that is more than half free shrinks, on one member after the other.
func TestDefragment(t *testing.T) {
	t.Parallel()
	const large = 8 << 20
	g := newGroupWith(t, 3, func(o *Options) { o.tend = tendLimits{every: 20 * time.Millisecond, defragmentFrom: large} })
	for i := range 160 {
		put(t, g.members[0], "/large", strings.Repeat(fmt.Sprint(i), 100_000))
	}
	for _, m := range g.members {
		if size := m.etcd.Server.Backend().Size(); size < large {
			t.Fatalf("the database has %d bytes", size)
		}
	}
	rev, err := g.members[0].Barrier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := g.members[0].Watch(t.Context(), keyDefragmenting, rev+1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := g.members[0].Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	// Space that a compaction freed counts as free after the next write.
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			_, _ = g.members[0].Txn(ctx, store.Txn{Ops: []store.Op{store.Put("/small", nil)}})
		}
	}()
	defer func() { stop(); <-stopped }()
	for held, turns := false, 0; turns < len(g.members); {
		b, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range b.Events {
			if ev.Deleted == !held {
				t.Fatalf("two members defragment at once: %+v", b)
			}
			if held = !ev.Deleted; !held {
				turns++
			}
		}
	}
	for i, m := range g.members {
		if be := m.etcd.Server.Backend(); be.Size() >= large {
			t.Errorf("member %d: %d bytes, of which %d are in use", i+1, be.Size(), be.SizeInUse())
		}
		if got := value(t, m, "/large"); !strings.HasPrefix(got, "159") {
			t.Errorf("member %d: the value is gone", i+1)
		}
	}
}
