package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// startQUIC serves on a loopback port until the test ends.
func startQUIC(t *testing.T, o QUICOptions) netip.AddrPort {
	t.Helper()
	listening := make(chan net.Addr, 1)
	o.Network, o.Log = "udp4", slog.New(slog.DiscardHandler)
	o.Listening = func(a net.Addr) { listening <- a }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- ServeQUIC(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case a := <-listening:
		return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), a.(*net.UDPAddr).AddrPort().Port())
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	panic("unreachable")
}

// TestQUICMoves checks that a client continues its downloads from other ports and addresses, with
// and without a server id in connection ids, and after it had to prove its address.
func TestQUICMoves(t *testing.T) {
	config := filepath.Join(t.TempDir(), "quic.json")
	text := `{"configs":[{"id":2,"format":"quiclb","key":"8f95f09245765f80256934e50c66207f","serverId":"007000","nonceLength":13,"active":true}]}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []QUICOptions{{Name: "plain"}, {Name: "named", Config: config, Retry: true}} {
		t.Run(o.Name, func(t *testing.T) {
			target := startQUIC(t, o)
			commands, orders := io.Pipe()
			reports, out := io.Pipe()
			ended := make(chan error, 1)
			go func() {
				from := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}
				err := QUICClient(t.Context(), QUICClientOptions{Target: target, From: from, Names: 40}, commands, out)
				out.Close()
				ended <- err
			}()
			lines := json.NewDecoder(reports)
			seen := map[string]bool{}
			want := func(event string) {
				t.Helper()
				var r QUICReport
				if err := lines.Decode(&r); err != nil || r.Event != event || r.Server != o.Name || seen[r.From] != (event == "ended") {
					t.Fatalf("%+v, %v, want %s from a new address of %s", r, err, event, o.Name)
				}
				seen[r.From] = true
			}
			want("connected")
			for range 2 {
				fmt.Fprintln(orders, "move")
				want("moved")
			}
			fmt.Fprintln(orders, "end")
			want("ended")
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Error("the client does not end")
			}
		})
	}
}

// TestQUICServerRefuses checks that a server without a configuration of its connection ids does not
// start.
func TestQUICServerRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.json")
	if err := ServeQUIC(t.Context(), QUICOptions{Network: "udp4", Config: path}); err == nil {
		t.Error("it serves")
	}
}
