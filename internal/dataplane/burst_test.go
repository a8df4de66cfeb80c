package dataplane

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/netdev"
)

// burstEther is the type of frames that nobody but the test sends (IEEE 802, local experiments).
const burstEther = 0x88b5

// burstRig is a mux with bursts, and a socket that takes what arrives behind its device.
type burstRig struct {
	t       *testing.T
	probes  *Probes
	burst   Burst
	quick   bool
	socket  int
	ifindex int32
}

// bothBursts runs a test with a sender of each kind.
func bothBursts(t *testing.T, f func(t *testing.T, r *burstRig)) {
	for name, quick := range map[string]bool{"quick": true, "long": false} {
		t.Run(name, func(t *testing.T) { f(t, newBurstRig(t, quick)) })
	}
}

// start begins a burst; of a quick sender all is over then.
func (r *burstRig) start(n, window int, young time.Duration) {
	r.t.Helper()
	r.burst.Start(n, window, young)
	if !r.quick {
		return
	}
	idle, err := r.burst.Idle()
	must(r.t, err)
	if _, ended := r.burst.Sent(); !idle || !ended {
		r.t.Fatalf("a quick burst has begun: idle %t, ended %t", idle, ended)
	}
}

func newBurstRig(t *testing.T, quick bool) *burstRig {
	e := newMuxEnv(t)
	n, err := netdev.OpenNamespace(e.namespace)
	must(t, err)
	defer n.Close()
	for _, device := range []string{"up0", "up1"} {
		must(t, n.SetOffload(device, netdev.OffloadGRO, true))
		must(t, n.SetUp(device, true))
	}
	r := &burstRig{t: t, quick: quick, ifindex: int32(e.ifindex)}
	must(t, netdev.In(e.namespace, func() error {
		far, err := netdev.FindInterface("up1")
		if err != nil {
			return err
		}
		protocol := int(be16(burstEther))
		if r.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(r.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		return unix.Bind(r.socket, &unix.SockaddrLinklayer{Protocol: uint16(protocol), Ifindex: far.Index})
	}))
	t.Cleanup(func() { unix.Close(r.socket) })
	m, err := e.open("")
	must(t, err)
	t.Cleanup(func() { m.Close() })
	r.probes, err = m.Probes()
	must(t, err)
	r.burst, err = r.probes.OpenBurst(quick)
	must(t, err)
	t.Cleanup(func() { r.burst.Close() })
	return r
}

// frame is frame i: of a length of its own, and with bytes that no other has.
func (r *burstRig) frame(i int) []byte {
	b := make([]byte, 18+i%(int(burstBurstLimitLIMIT_BURST_BYTES)-17))
	for j := range b {
		b[j] = byte(i + j*7)
	}
	copy(b, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1})
	binary.BigEndian.PutUint16(b[12:], burstEther)
	binary.BigEndian.PutUint32(b[14:], uint32(i))
	return b
}

// fill makes frames from..from+n-1 the next burst's.
func (r *burstRig) fill(from, n int) {
	for i := range n {
		must(r.t, r.burst.Put(i, BurstFrame{Number: uint32(i), ISN: 1, Ifindex: r.ifindex, Data: r.frame(from + i)}))
	}
}

// finish waits until a burst is over, and says how many frames went.
func (r *burstRig) finish() int {
	for {
		idle, err := r.burst.Idle()
		must(r.t, err)
		if idle {
			n, ended := r.burst.Sent()
			if !ended {
				r.t.Fatal("a burst is over, but more may go")
			}
			return n
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
}

// expect takes n frames that begin with number `from`: each once, byte by byte.
func (r *burstRig) expect(from, n int) {
	r.t.Helper()
	seen := map[int]bool{}
	b := make([]byte, 2048)
	for len(seen) < n {
		size, _, err := unix.Recvfrom(r.socket, b, 0)
		must(r.t, err)
		i := int(binary.BigEndian.Uint32(b[14:]))
		if i < from || i >= from+n || seen[i] || !bytes.Equal(b[:size], r.frame(i)) {
			r.t.Fatalf("frame %d of %d to %d, seen before: %t: % x", i, from, from+n, seen[i], b[:size])
		}
		seen[i] = true
	}
}

// nothing: no frame more has arrived.
func (r *burstRig) nothing() {
	r.t.Helper()
	b := make([]byte, 2048)
	if size, _, err := unix.Recvfrom(r.socket, b, unix.MSG_DONTWAIT); err != unix.EAGAIN {
		r.t.Fatalf("a frame too many: % x, %v", b[:max(size, 0)], err)
	}
}

// TestBurstsSendEachFrameOnce: of every length, byte by byte, whatever the kernel's frames had in them before.
func TestBurstsSendEachFrameOnce(t *testing.T) { bothBursts(t, burstsSendEachFrameOnce) }

func burstsSendEachFrameOnce(t *testing.T, r *burstRig) {
	from := 0
	for _, n := range []int{1, 64, 200, BurstWindow, 3} {
		r.fill(from, n)
		r.start(n, BurstWindow, time.Hour)
		if sent := r.finish(); sent != n {
			t.Fatalf("%d of %d frames went, with room for all", sent, n)
		}
		last := int64(0)
		for i := range n {
			if r.burst.At(i) < last || r.burst.At(i) == 0 {
				t.Fatalf("frame %d went at %d, the one before it at %d", i, r.burst.At(i), last)
			}
			last = r.burst.At(i)
		}
		r.expect(from, n)
		from += n
	}
	r.nothing()
}

// TestBurstsKeepToTheirWindow: probes without a final result hold their places; those with one, and those that are not young any
// more, do not.
func TestBurstsKeepToTheirWindow(t *testing.T) { bothBursts(t, burstsKeepToTheirWindow) }

func burstsKeepToTheirWindow(t *testing.T, r *burstRig) {
	const n, window = 100, 10
	result := func(i int, isn uint32, state ProbeState) {
		store(&r.probes.results[i].Word, uint64(isn)|uint64(state)<<muxProbeResultShiftPROBE_RESULT_STATE_SHIFT)
	}
	for name, c := range map[string]struct {
		isn   uint32
		state ProbeState
		young time.Duration
		want  int
	}{
		"silent":             {1, ProbeSilent, time.Hour, window},
		"asked":              {1, ProbeConnected, time.Hour, window},
		"another round":      {2, ProbeAnswered, time.Hour, window},
		"answered":           {1, ProbeAnswered, time.Hour, n},
		"refused":            {1, ProbeRefused, time.Hour, n},
		"not young any more": {1, ProbeSilent, 0, n},
	} {
		for i := range n {
			result(i, c.isn, c.state)
		}
		r.fill(1000, n)
		r.start(n, window, c.young)
		if sent := r.finish(); sent != c.want {
			t.Errorf("%s: %d frames went, want %d", name, sent, c.want)
		}
		r.expect(1000, c.want)
		r.nothing()
	}
}

// TestBurstsRefuse: what does not fit is an error, and senders without a program are none.
func TestBurstsRefuse(t *testing.T) { bothBursts(t, burstsRefuse) }

func burstsRefuse(t *testing.T, r *burstRig) {
	for _, size := range []int{0, 13, int(burstBurstLimitLIMIT_BURST_BYTES) + 1} {
		if r.burst.Put(0, BurstFrame{Data: make([]byte, size)}) == nil {
			t.Errorf("a frame of %d bytes is taken", size)
		}
	}
	if b, err := NewFakeProbes(64).OpenBurst(false); err == nil {
		b.Close()
		t.Error("tables without a program open bursts")
	}
}

// TestNobodyRunsAnAnchor: a program is in no frame's way by the device that it is anchored to.
func TestNobodyRunsAnAnchor(t *testing.T) {
	r := newBurstRig(t, true)
	a := r.burst.(*LiveBurst).anchor
	must(t, a.namespace.In(func() error {
		for _, end := range []string{anchorDevice, anchorPeer} {
			device, err := netdev.FindInterface(end)
			if err != nil {
				return err
			}
			if device.Up {
				t.Errorf("%s is up", end)
			}
		}
		return nil
	}))
	info, err := a.at.Info()
	must(t, err)
	if xdp := info.XDP(); xdp == nil || xdp.Ifindex == 0 {
		t.Errorf("the program is on no device: %+v", info)
	}
}
