package etcd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// memberProcess is a member in its own process, with full durability.
type memberProcess struct {
	Dir, Name, Peer string
	Cluster         []string
	TLS             TLS
	// Do is its action when it is up: "write" key after key and print each acknowledged one, or
	// hold a "lease".
	Do string
	// LowDisk is the free space in bytes below which it refuses writes.
	LowDisk uint64

	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Reader
	// count is the number of writes that this start acknowledged.
	count int
}

// memberVariable makes the test binary run as such a process.
const memberVariable = "SHUNT_TEST_MEMBER"

func init() {
	if text := os.Getenv(memberVariable); text != "" {
		var p memberProcess
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			panic(err)
		}
		if err := p.run(context.Background()); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
}

func (p *memberProcess) run(ctx context.Context) error {
	m, err := Open(ctx, Options{
		Dir: p.Dir, Name: p.Name, Peer: p.Peer, Cluster: p.Cluster, TLS: p.TLS,
		tend: tendLimits{every: 10 * time.Millisecond, lowDisk: p.LowDisk, defragmentFrom: 1 << 40},
	})
	if err != nil {
		return err
	}
	fmt.Println("up")
	if p.Do == "lease" {
		return p.lease(ctx, m)
	}
	for i := 0; ; i++ {
		op := store.Put(fmt.Sprintf("/written/%s/%d", p.Name, i), []byte(strings.Repeat("x", 1000)))
		if _, err := m.Txn(ctx, store.Txn{Ops: []store.Op{op}}); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

// lease holds a lease with a key, and prints when it has lost it.
func (p *memberProcess) lease(ctx context.Context, m *Member) error {
	id, err := m.Grant(ctx, 5*time.Second)
	if err != nil {
		return err
	}
	op := store.Op{Key: "/leased", Value: []byte(p.Name), Lease: id}
	if _, err := m.Txn(ctx, store.Txn{Ops: []store.Op{op}}); err != nil {
		return err
	}
	fmt.Println("leased")
	err = m.KeepAlive(ctx, id)
	if errors.Is(err, store.ErrLeaseLost) {
		fmt.Println("lost")
	}
	return err
}

// start returns when the member is up.
func (p *memberProcess) start(t *testing.T) {
	t.Helper()
	p.launch(t)
	p.says("up")
}

// fails starts a member that cannot come up, and returns the reason.
func (p *memberProcess) fails(t *testing.T) string {
	t.Helper()
	p.launch(t)
	line, err := p.out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "failed: ") {
		t.Fatalf("%s said %q, %v", p.Name, line, err)
	}
	rest, _ := io.ReadAll(p.out)
	if p.cmd.Wait(); p.cmd.ProcessState.ExitCode() != 1 || len(rest) > 0 {
		t.Errorf("%s ended with %v, and said %q", p.Name, p.cmd.ProcessState, rest)
	}
	return strings.TrimPrefix(strings.TrimSpace(line), "failed: ")
}

func (p *memberProcess) launch(t *testing.T) {
	t.Helper()
	p.t, p.count = t, 0
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), memberVariable+"="+string(text))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.signal(syscall.SIGKILL); p.cmd.Wait() })
	p.out = bufio.NewReader(out)
}

func (p *memberProcess) says(want string) {
	p.t.Helper()
	if line, err := p.out.ReadString('\n'); err != nil || line != want+"\n" {
		p.t.Fatalf("%s said %q, %v, want %q", p.Name, line, err, want)
	}
}

func (p *memberProcess) signal(s syscall.Signal) { p.cmd.Process.Signal(s) }

// acknowledged reads numbers until this start printed n of them, or the process ends (n < 0). It
// returns their count, and the last line.
func (p *memberProcess) acknowledged(n int) (count int, last string) {
	for n < 0 || p.count < n {
		line, err := p.out.ReadString('\n')
		if err != nil {
			break
		}
		last = strings.TrimSpace(line)
		if i, err := strconv.Atoi(last); err == nil && i == p.count {
			p.count++
		}
	}
	return p.count, last
}

// kill kills it and returns the number of writes that it acknowledged.
func (p *memberProcess) kill() int {
	p.signal(syscall.SIGKILL)
	count, _ := p.acknowledged(-1)
	p.cmd.Wait()
	return count
}

// written checks that the store has the writes that the process acknowledged.
func written(t *testing.T, s store.Store, p *memberProcess, count int) {
	t.Helper()
	snap, err := s.List(t.Context(), "/written/"+p.Name+"/")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, kv := range snap.KVs {
		have[kv.Key] = true
	}
	for i := range count {
		if key := fmt.Sprintf("/written/%s/%d", p.Name, i); !have[key] {
			t.Errorf("%s of %d was acknowledged and is lost", key, count)
		}
	}
}

// TestKill: a lone member that is killed during writes keeps all acknowledged ones.
func TestKill(t *testing.T) {
	t.Parallel()
	p := &memberProcess{Dir: t.TempDir(), Name: "m1", Do: "write"}
	for range 3 {
		p.start(t)
		p.acknowledged(100)
		count := p.kill()
		m, err := Open(t.Context(), Options{Dir: p.Dir, Name: p.Name, UnsafeNoFsync: true})
		if err != nil {
			t.Fatal(err)
		}
		written(t, m, p, count)
		m.Close()
	}
}

// TestKillOneOfThree: whichever member is killed, leader or not, the others have the writes that it
// acknowledged, and so has it after a restart.
func TestKillOneOfThree(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2)
	p := &memberProcess{Dir: t.TempDir(), Name: "m3", Peer: freeAddr(t), TLS: g.ca.TLS, Do: "write"}
	var err error
	if p.Cluster, err = g.members[0].Add(t.Context(), p.Name, p.Peer); err != nil {
		t.Fatal(err)
	}
	for _, leads := range []bool{false, true} {
		p.start(t)
		if leads {
			g.lead(p.Name)
		}
		p.acknowledged(200)
		count := p.kill()
		for _, m := range g.members {
			written(t, m, p, count)
		}
	}
	p.Do = "lease"
	p.start(t)
	p.says("leased")
	if got := value(t, g.members[0], "/leased"); got != "m3" {
		t.Errorf("the member that is back wrote %q", got)
	}
}

// TestFrozen: a process that is stopped for longer than its lease has lost it, and reports that as
// soon as it continues.
func TestFrozen(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2)
	p := &memberProcess{Dir: t.TempDir(), Name: "m3", Peer: freeAddr(t), TLS: g.ca.TLS, Do: "lease"}
	var err error
	if p.Cluster, err = g.members[0].Add(t.Context(), p.Name, p.Peer); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	p.says("leased")
	// It is frozen as the leader of etcd, which counts the leases itself, and still considers
	// itself leader when it continues.
	g.lead(p.Name)
	rev, err := g.members[0].Barrier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := g.members[0].Watch(t.Context(), "/leased", rev+1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	p.signal(syscall.SIGSTOP)
	b, err := w.Next(t.Context())
	if err != nil || len(b.Events) != 1 || !b.Events[0].Deleted {
		t.Fatalf("the lease of the frozen one: %+v, %v", b, err)
	}
	put(t, g.members[1], "/leased", "another's")
	p.signal(syscall.SIGCONT)
	p.says("lost")
	if got := value(t, g.members[0], "/leased"); got != "another's" {
		t.Errorf("after it: %q", got)
	}
}

// lead makes the member the leader of etcd.
func (g *group) lead(name string) {
	g.t.Helper()
	for {
		leader := g.any()
		for _, m := range g.members {
			if m.etcd.Server.Leader() == m.etcd.Server.MemberID() {
				leader = m
			}
		}
		members := leader.etcd.Server.Cluster().Members()
		for _, o := range members {
			if o.Name != name || o.IsLearner {
				continue
			}
			if leader.etcd.Server.Leader() == o.ID {
				return
			}
			ctx, cancel := context.WithTimeout(g.t.Context(), 5*time.Second)
			// Leadership may move meanwhile; the loop retries.
			_ = leader.etcd.Server.MoveLeader(ctx, uint64(leader.etcd.Server.MemberID()), uint64(o.ID))
			cancel()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-g.t.Context().Done():
			g.t.Fatal("the test ends")
		}
	}
}
