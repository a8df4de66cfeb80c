package loop

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// counterOf returns a TCP counter of the thread's namespace, from snmp or netstat.
func counterOf(file, name string) (int, error) {
	all, err := os.ReadFile("/proc/thread-self/net/" + file)
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(all)) {
		fields := strings.Fields(line)
		if len(fields) == len(names) && fields[0] == names[0] {
			return strconv.Atoi(fields[slices.Index(names, name)])
		}
		if names = fields; !slices.Contains(names, name) {
			names = nil
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// TestALostSYNIsNoVerdict checks that a probe connects within the timeout to a server that dropped
// the first SYN: by an additional connection or, if the kernel's retransmission is sooner, by the
// first. No additional connection is left.
func TestALostSYNIsNoVerdict(t *testing.T) {
	for _, c := range []struct {
		timeout time.Duration
		lost    int
	}{{900 * time.Millisecond, 1}, {2 * time.Second, 2}} {
		t.Run(fmt.Sprint(c.lost), func(t *testing.T) {
			name := namespace(t, fmt.Sprint("again", c.lost))
			r := newRig(t, Options{Loops: 1, Enter: enter(name)})
			for end := time.Now().Add(time.Minute); ; {
				a := askLosing(t, r, name, c.timeout, c.lost)
				if a.Verdict == probe.Good && r.Stats().Again > 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("got %+v; %+v", a, r.Stats())
				}
			}
			if n := r.Stats().Sockets; n > 1+maxAgain {
				t.Errorf("%d sockets", n)
			}
			r.Close()
			if l := r.loops[0]; l.room.busy() != 0 || l.deadlines.Len() != 0 {
				t.Errorf("%d are under way, %d have a deadline", l.room.busy(), l.deadlines.Len())
			}
		})
	}
}

// askLosing probes a server with a full backlog until lost SYNs were dropped, then makes room.
func askLosing(t *testing.T, r *rig, name string, timeout time.Duration, lost int) probe.Answer {
	t.Helper()
	in := func(f func() error) {
		t.Helper()
		if err := netdev.In(name, f); err != nil {
			t.Fatal(err)
		}
	}
	var fd, before int
	var address netip.AddrPort
	in(func() (err error) {
		if before, err = counterOf("netstat", "ListenOverflows"); err != nil {
			return err
		}
		fd, address, err = noPlace()
		return err
	})
	defer unix.Close(fd)
	var first net.Conn
	in(func() (err error) {
		first, err = net.Dial("tcp", address.String())
		return err
	})
	defer first.Close()
	id := r.add(of(check(lb.CheckTCP, timeout, nil), address))
	r.Ask([]uint32{id})
	for dropped := before; dropped < before+lost; {
		select {
		case a := <-r.answers:
			return a // this machine is too busy
		default:
		}
		in(func() (err error) { dropped, err = counterOf("netstat", "ListenOverflows"); return err })
	}
	if accepted, _, err := unix.Accept(fd); err == nil {
		defer unix.Close(accepted)
	}
	return <-r.answers
}

// noPlace listens on loopback, with a backlog of one connection.
func noPlace() (int, netip.AddrPort, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		return fd, netip.AddrPort{}, err
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return fd, netip.AddrPort{}, err
	}
	return fd, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(bound.(*unix.SockaddrInet4).Port)), nil
}

// TestSilentServersKeepNobodyWaiting checks that healthy servers do not wait behind silent ones,
// neither when these become silent nor later, when there is no room for all of them.
func TestSilentServersKeepNobodyWaiting(t *testing.T) {
	const few, patient, known = 2, 24, 200
	fallen := newCrowd(t, Options{Loops: 1, InFlight: few, Patient: patient}, long, patient/(1+maxAgain))
	if n := fallen.before(); n > 0 {
		t.Errorf("%d servers that fell silent were waited for", n)
	}
	r := newCrowd(t, Options{Loops: 1, InFlight: few, Patient: patient}, short, known)
	r.Ask(r.silent)
	for range r.silent {
		<-r.answers
	}
	if n := r.before(); n > known/2 {
		t.Errorf("%d of %d servers known as silent were waited for", n, known)
	}
	if r.Stats().Starved == 0 {
		t.Error("there was room for all")
	}
}

// crowd is a set of silent servers and a few healthy ones.
type crowd struct {
	*rig
	silent, healthy []uint32
}

func newCrowd(t *testing.T, o Options, timeout time.Duration, silent int) *crowd {
	t.Helper()
	c := &crowd{rig: newRig(t, o)}
	drops, serves := fullBacklog(t), serve(t, "127.0.0.1:0", says(""))
	for range silent {
		c.silent = append(c.silent, c.add(of(check(lb.CheckTCP, timeout, nil), drops)))
	}
	for range 3 {
		c.healthy = append(c.healthy, c.add(of(check(lb.CheckTCP, long, nil), serves)))
	}
	return c
}

// before returns how many silent servers get a verdict before the healthy ones when they are probed
// first.
func (c *crowd) before() (n int) {
	c.t.Helper()
	c.Ask(append(slices.Clone(c.silent), c.healthy...))
	for missing := len(c.healthy); missing > 0; {
		switch a := <-c.answers; {
		case slices.Contains(c.healthy, a.ID) && a.Verdict == probe.Good:
			missing--
		case slices.Contains(c.healthy, a.ID):
			c.t.Fatalf("got %+v of a server that answers", a)
		default:
			n++
		}
	}
	return n
}

// TestLateIsForgotten checks that a server that answers again is no longer marked late, and that a
// target does not inherit the mark of the previous one with its number.
func TestLateIsForgotten(t *testing.T) {
	r := newRig(t, Options{Loops: 1})
	late := func(id uint32) bool {
		l := r.loops[0]
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.late.has(id)
	}
	drops := fullBacklog(t)
	id := r.add(of(check(lb.CheckTCP, short, nil), drops))
	r.Ask([]uint32{id})
	if a := <-r.answers; a.Words != "no connection within 50 ms" || !late(id) {
		t.Fatalf("got %+v, late %v", a, late(id))
	}
	r.Remove(id)
	if err := r.Add(id, of(check(lb.CheckTCP, long, nil), serve(t, "127.0.0.1:0", says("")))); err != nil || late(id) {
		t.Fatalf("a new target is late: %v, %v", late(id), err)
	}
	r.loops[0].mu.Lock()
	r.loops[0].late.set(id, true)
	r.loops[0].mu.Unlock()
	r.Ask([]uint32{id})
	if a := <-r.answers; a.Verdict != probe.Good || late(id) {
		t.Fatalf("got %+v, late %v", a, late(id))
	}
}

func TestAgainAfter(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		50 * time.Millisecond: 0, 60 * time.Millisecond: 50 * time.Millisecond, 600 * time.Millisecond: 200 * time.Millisecond,
		2 * time.Second: 2 * time.Second / 3, 3 * time.Second: 0, time.Minute: 0,
	} {
		if got := againAfter(timeout); got != want {
			t.Errorf("%v: got %v, want %v", timeout, got, want)
		}
	}
}
