package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// timeWait is T7: a client reuses its port while it, or its server, still holds the previous
// connection: immediately, and when the choice for a SYN has expired (10 s). In the second case the
// server may be another, so that cookies rise and fall.
func (s *stacks) timeWait(t *testing.T) {
	var all sync.WaitGroup
	var rises, falls atomic.Int32
	for _, target := range s.both.targets() {
		for _, clientFirst := range []bool{true, false} {
			all.Go(func() {
				port := freshPort()
				for turn := range 10 {
					fails(t, visitOnce(target, port, clientFirst), "%s: connection %d from port %d, closed by its client %v", target, turn, port, clientFirst)
					if turn%2 == 0 {
						// A client's kernel reuses a port after a second.
						time.Sleep(1100 * time.Millisecond)
					} else {
						time.Sleep(10500 * time.Millisecond)
					}
				}
				stamps := s.client.stampsOfAnswer(port)
				if len(stamps) < 10 {
					t.Errorf("%s: %d SYN-ACKs with timestamps", target, len(stamps))
				}
				for i := 1; i < len(stamps); i++ {
					switch before, now := stamps[i-1]>>15&0xffff, stamps[i]>>15&0xffff; {
					case now > before:
						rises.Add(1)
					case now < before:
						falls.Add(1)
					}
				}
			})
		}
	}
	all.Wait()
	if rises.Load() == 0 || falls.Load() == 0 {
		t.Errorf("cookies rise %d times and fall %d times", rises.Load(), falls.Load())
	}
}

// visitOnce makes a request from a port. The client or the server closes the connection first.
func visitOnce(target string, port int, clientFirst bool) error {
	v, err := openVisit(target, port)
	if err != nil {
		return err
	}
	defer v.conn.Close()
	if clientFirst {
		_, err := v.name()
		return err
	}
	if err := v.do("GET", "/", nil, io.Discard, 0, "Connection: close"); err != nil {
		return err
	}
	if _, err := v.answers.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the server does not close: %w", err)
	}
	return nil
}

// anotherKey is T15: the key of cookies is replaced under load. Every connection continues, and
// soon has a cookie of the new key.
func (s *stacks) anotherKey(t *testing.T) {
	var all []*visit
	at := map[*visit]string{}
	for range 6 {
		for _, target := range s.all.targets() {
			v := visits(t, target)
			name, err := v.name()
			fails(t, err, "%s", target)
			all, at[v] = append(all, v), name
		}
	}
	keys := func() (out []uint32) {
		for _, v := range all {
			stamp, ok := s.client.lastStamp(v.port)
			if !ok {
				t.Fatal("no segment with a timestamp came")
			}
			out = append(out, stamp>>30&1)
		}
		return out
	}
	before := keys()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			for i, v := range all {
				name, err := v.name()
				if err == nil && n%50 == i {
					err = v.download("/pattern")
				}
				if err != nil || name != at[v] {
					t.Errorf("the connection from port %d to %s: %q: %v", v.port, at[v], name, err)
					return
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, vip := range s.all.vips() {
		if _, err := client.RotateKeys(t.Context(), connect.NewRequest(&apiv1.RotateKeysRequest{Scopes: []string{vip.String()}, Purpose: "cookie"})); err != nil {
			t.Fatal(err)
		}
	}
	awaitKeys(t, s.all.vips(), "rest")
	await(t, "cookies of the new key on all connections", func(context.Context) error {
		for i, now := range keys() {
			if now == before[i] {
				return fmt.Errorf("the one from port %d has still key %d", all[i].port, now)
			}
		}
		return nil
	})
	close(stop)
	<-done
}

// agentKilled checks that connections continue, and new ones begin, while no agent runs on the host
// and after it restarts.
func (s *stacks) agentKilled(t *testing.T) {
	var all []*visit
	open := func() {
		for _, target := range s.plain[vmUsual].targets() {
			v := visits(t, target)
			_, err := v.name()
			fails(t, err, "%s", target)
			all = append(all, v)
		}
	}
	work := func(when string) {
		for _, v := range all {
			fails(t, v.pushed(100*time.Millisecond), "push %s", when)
			fails(t, v.download("/pattern"), "download %s", when)
			fails(t, v.upload(s.dir), "upload %s", when)
		}
	}
	open()
	if err := shared.KillAgent(t.Context(), "host2"); err != nil {
		t.Fatal(err)
	}
	work("without an agent")
	open()
	work("after a handshake without an agent")
	if err := shared.StartAgent("host2"); err != nil {
		t.Fatal(err)
	}
	if err := shared.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	open()
	work("with the next agent")
}

// stateLost is T9: a host loses all flows and clocks while connections are silent. Their clients'
// next packets restore them.
func (s *stacks) stateLost(t *testing.T) {
	var all []*visit
	for _, web := range []service{s.plain[vmClock], s.plain[vmLossy]} {
		for _, target := range web.targets() {
			for range 3 {
				v := visits(t, target)
				_, err := v.name()
				fails(t, err, "%s", target)
				fails(t, v.download("/pattern"), "%s", target)
				all = append(all, v)
			}
		}
	}
	rebuilt := reasons(t.Context(), t, "host3")["cookie_rebuilt"]
	if err := shared.KillAgent(t.Context(), "host3"); err != nil {
		t.Fatal(err)
	}
	stop := shared.Command(program, "host", "--stop", "--bpffs", shared.Pins("host3"), "--run", shared.RunDir("host3"))
	var said bytes.Buffer
	stop.Stdout, stop.Stderr = &said, &said
	if err := shared.StartOn("host3", stop); err != nil {
		t.Fatal(err)
	}
	if err := stop.Wait(); err != nil {
		t.Fatalf("%v: %v: %s", stop.Args, err, said.String())
	}
	if left, err := os.ReadDir(filepath.Join(shared.Pins("host3"))); err == nil && len(left) > 0 {
		t.Errorf("pins are left: %v", left)
	}
	if err := shared.StartAgent("host3"); err != nil {
		t.Fatal(err)
	}
	if err := shared.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		_, err := v.name()
		fails(t, err, "the connection from port %d after the host forgot it", v.port)
		fails(t, v.pushed(200*time.Millisecond), "push, from port %d", v.port)
		fails(t, v.download("/pattern"), "download, from port %d", v.port)
		fails(t, v.upload(s.dir), "upload, from port %d", v.port)
	}
	await(t, "clocks rebuilt of echoes", func(ctx context.Context) error {
		// The agent's counters restart with new maps.
		if n := reasons(ctx, t, "host3")["cookie_rebuilt"]; n < uint64(len(all)) && n < rebuilt+uint64(len(all)) {
			return fmt.Errorf("%d, want %d", n, len(all))
		}
		return nil
	})
}
