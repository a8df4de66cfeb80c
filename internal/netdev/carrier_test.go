package netdev

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// TestWatchCarrier: the carrier is reported lost when the other end or the interface itself goes
// down, and present when it comes back.
func TestWatchCarrier(t *testing.T) {
	name := fmt.Sprintf("netdev-%d-carrier", os.Getpid())
	if err := CreateNamespace(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { DeleteNamespace(name) })
	n, err := OpenNamespace(name)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := AddVeth(VethEnd{Namespace: n, Name: "a"}, VethEnd{Namespace: n, Name: "b"}, 1500); err != nil {
		t.Fatal(err)
	}
	set := func(dev string, up bool) {
		t.Helper()
		if err := n.SetUp(dev, up); err != nil {
			t.Fatal(err)
		}
	}
	set("a", true)
	set("b", true)
	ctx, cancel := context.WithCancel(context.Background())
	states, done := make(chan bool, 256), make(chan error, 1)
	go func() {
		done <- In(name, func() error { return WatchCarrier(ctx, "a", func(up bool) { states <- up }) })
	}()
	await := func(want bool) {
		t.Helper()
		for got := range states {
			if got == want {
				return
			}
		}
	}
	await(true)
	set("b", false)
	await(false)
	set("b", true)
	await(true)
	set("a", false)
	await(false)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
