package lab_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// TestCookieKeysFollow is T8 with managers, which retain a key before the next rotation: keys
// follow each other as fast as allowed, every connection gets a new cookie each time, and one of a
// hundred packets is lost each way. Connections continue, and no kernel drops a segment because of
// its timestamp.
func TestCookieKeysFollow(t *testing.T) {
	topology := lab.DefaultTopology()
	topology.Name = fmt.Sprintf("follow%d", os.Getpid())
	topology.Hosts.Count, topology.Routers.Daemon = 2, daemon()
	t.Cleanup(func() {
		if err := lab.Down(context.Background(), topology.Name); err != nil {
			t.Error(err)
		}
	})
	// The retention is longer than any retransmission timeout here.
	l, err := lab.Up(t.Context(), topology, lab.Options{Binary: program, ManagerFlags: []string{"--key-rest", "2s"}})
	if err != nil {
		t.Fatal(err)
	}
	before := shared
	shared = l
	t.Cleanup(func() { shared = before })
	logsOnFailure(t, l)
	servers := []string{"host1-vm1", "host2-vm1"}
	startNginx(t, servers...)
	web := cookieWeb("follow", 201, servers...)
	web.up(t)
	awaitKeys(t, web.vips(), "steady")
	odd, client := oddTimestamps(t), listen(t, "client1", lab.Uplink)
	drops(t, "client1", "shunt_loss", web.fromVIPs("numgen random mod 100 == 0 drop")...)
	for _, vm := range servers {
		drops(t, vm, "shunt_loss", fmt.Sprintf("tcp dport %d numgen random mod 100 == 0 drop", nginxPort))
	}
	const each, rotations = 3, 5
	var all []*visit
	stop := make(chan struct{})
	var talking sync.WaitGroup
	for range each {
		for _, target := range web.targets() {
			v := visits(t, target)
			all = append(all, v)
			talking.Go(func() {
				first := ""
				for n := 1; ; n++ {
					name, err := v.name()
					if n == 1 {
						first = name
					}
					if err == nil && n%1000 == 0 {
						err = v.download("/pattern")
					}
					if err != nil || name != first {
						t.Errorf("the connection from port %d to %s: %q: %v", v.port, first, name, err)
						return
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
	}
	keys := func() (out []uint32) {
		for _, v := range all {
			key := uint32(2) // no packet came
			if stamp, ok := client.lastStamp(v.port); ok {
				key = stamp >> 30 & 1
			}
			out = append(out, key)
		}
		return out
	}
	await(t, "all connections speak", func(context.Context) error {
		for _, v := range all {
			if _, ok := client.lastStamp(v.port); !ok {
				return fmt.Errorf("the one from port %d does not", v.port)
			}
		}
		return nil
	})
	manager, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	reminted := countOf(t.Context(), t, "host", "cookie_reminted")
	now := keys()[0]
	for n := range rotations {
		for _, vip := range web.vips() {
			await(t, fmt.Sprintf("rotation %d of %s", n, vip), func(ctx context.Context) error {
				_, err := manager.RotateKeys(ctx, connect.NewRequest(&apiv1.RotateKeysRequest{Scopes: []string{vip.String()}, Purpose: "cookie"}))
				return err
			})
		}
		now ^= 1
		client.forget()
		await(t, "cookies of the new key on all connections", func(context.Context) error {
			for i, key := range keys() {
				if key != now {
					return fmt.Errorf("the one from port %d has key %d, want %d", all[i].port, key, now)
				}
			}
			return nil
		})
	}
	close(stop)
	talking.Wait()
	await(t, "cookies minted anew", func(ctx context.Context) error {
		if n := countOf(ctx, t, "host", "cookie_reminted") - reminted; n < uint64(rotations*len(all)) {
			return fmt.Errorf("%d, want %d", n, rotations*len(all))
		}
		return nil
	})
	for what, n := range oddTimestamps(t) {
		if n != odd[what] {
			t.Errorf("%s is %d, it was %d", what, n, odd[what])
		}
	}
}
