package chaos

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// talks are long connections through a TCP echo service that send messages all the time. A
// connection breaks when it is reset, closed, or returns a wrong echo. A temporary silence is no
// break.
type talks struct {
	t    *testing.T
	name string
	dial func() (net.Conn, error)
	// excuse records the faults that may break them. nil means that none may.
	excuse *parted
	stop   chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	broken  []string
	excused int
	longest time.Duration
	spoken  int
}

// parted records when muxes could not reach a host. Each mux then finds the host's servers dead, as
// it must, and moves their flows.
type parted struct {
	mu sync.Mutex
	// now is how many partitions are active, ever how many there were.
	now, ever int
}

// muxesAndHosts records partitions of the links that the schedule breaks.
var muxesAndHosts parted

func (p *parted) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now++
	p.ever++
}

func (p *parted) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
}

// since reports whether any partition was active after the first `ever` ones.
func (p *parted) since(ever int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now > 0 || p.ever > ever
}

// count returns how many there were.
func (p *parted) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ever
}

const (
	// talkers is how many connections each group has: of every service and family through each
	// client.
	talkers   = 6
	talkEvery = 250 * time.Millisecond
	// silence is how long TCP may need to deliver a message after a loss of several seconds.
	silence = 90 * time.Second
)

// Clients of long connections. Those of the second go through the mux without faults, whatever
// routes there are.
const (
	anyMuxClient = "client1"
	oneMuxClient = "client2"
)

// pin makes the router send the second client's packets to a VIP through the mux without faults.
func pin(vip netip.Addr) error {
	client, err := cluster.Topology.Find(oneMuxClient)
	if err != nil {
		return err
	}
	mux, err := cluster.Topology.Find(untouched)
	if err != nil {
		return err
	}
	from, via := ofFamily(client.Addresses(), vip), ofFamily(mux.Addresses(), vip)
	const router, table = "router1", "100"
	if err := ip(router, familyOption(vip), "rule", "add", "from", from.String(), "to", vip.String(), "lookup", table); err != nil {
		return err
	}
	return ip(router, familyOption(vip), "route", "add", vip.String(), "via", via.String(), "table", table)
}

// ofFamily returns the address of a pair that has the family of another address.
func ofFamily(p lab.Pair, like netip.Addr) netip.Addr {
	if like.Is6() {
		return p.V6.Addr()
	}
	return p.V4.Addr()
}

// familyOption returns the option of ip(8) for the family of an address.
func familyOption(a netip.Addr) string {
	if a.Is6() {
		return "-6"
	}
	return "-4"
}

// startTalks opens connections from a client.
func startTalks(t *testing.T, name, client, target string, excuse *parted) *talks {
	t.Helper()
	dialer := netdev.Dialer(lab.Node{Name: client}.Namespace(cluster.Topology.Name))
	k := &talks{t: t, name: name, excuse: excuse, stop: make(chan struct{}), dial: func() (net.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), eventually)
		defer cancel()
		return dialer(ctx, "tcp", target)
	}}
	for i := range talkers {
		conn, err := k.dial()
		if err != nil {
			t.Fatal(err)
		}
		k.wg.Go(func() { k.keep(i, conn) })
	}
	return k
}

// keep talks until the end. It replaces a connection that had an excuse to break.
func (k *talks) keep(i int, conn net.Conn) {
	for {
		ever, err := k.talk(i, conn)
		conn.Close()
		if err == nil {
			return
		}
		excused := k.excuse != nil && k.excuse.since(ever)
		k.mu.Lock()
		if excused {
			k.excused++
		} else {
			k.broken = append(k.broken, fmt.Sprintf("%s: connection %d from %s at %s: %v", k.name, i, conn.LocalAddr(), time.Now().Format("15:04:05.000"), err))
		}
		k.mu.Unlock()
		if !excused {
			return
		}
		// A connection that is opened now would have a server that only its mux would choose.
		for k.excuse.since(k.excuse.count()) {
			time.Sleep(talkEvery)
		}
		if conn, err = k.dial(); err != nil {
			k.mu.Lock()
			k.broken = append(k.broken, fmt.Sprintf("%s: connection %d cannot be opened again: %v", k.name, i, err))
			k.mu.Unlock()
			return
		}
	}
}

// talk returns why the connection broke, and how many excuses there had been at the last good echo.
func (k *talks) talk(i int, conn net.Conn) (ever int, err error) {
	for n := uint64(1); ; n++ {
		if k.excuse != nil && !k.excuse.since(k.excuse.count()) {
			ever = k.excuse.count()
		}
		select {
		case <-k.stop:
			return ever, nil
		case <-time.After(talkEvery):
		}
		var message, answer [16]byte
		binary.BigEndian.PutUint64(message[:], uint64(i))
		binary.BigEndian.PutUint64(message[8:], n)
		begin := time.Now()
		err := conn.SetDeadline(begin.Add(silence))
		if err == nil {
			_, err = conn.Write(message[:])
		}
		if err == nil {
			_, err = io.ReadFull(conn, answer[:])
		}
		if err == nil && message != answer {
			err = fmt.Errorf("answered %x to %x", answer, message)
		}
		k.mu.Lock()
		k.longest = max(k.longest, time.Since(begin))
		k.spoken++
		k.mu.Unlock()
		if err != nil {
			return ever, fmt.Errorf("message %d: %w", n, err)
		}
	}
}

// end stops the talks and fails the test for each broken connection.
func (k *talks) end() {
	k.t.Helper()
	close(k.stop)
	k.wg.Wait()
	k.t.Logf("%s: %d connections said %d things, the longest wait for an answer was %s; %d broke, %d while their mux did not reach a host",
		k.name, talkers, k.spoken, k.longest.Round(time.Millisecond), len(k.broken)+k.excused, k.excused)
	for _, b := range k.broken {
		k.t.Error(b)
	}
}
