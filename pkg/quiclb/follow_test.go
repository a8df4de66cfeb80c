package quiclb

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// outcome is one result that Follow reported for its file.
type outcome struct {
	configs Configs
	err     error
}

// TestFollow: Follow applies new contents however the file is replaced. Invalid contents change
// nothing and are reported once.
func TestFollow(t *testing.T) {
	one := Config{ID: 1, Format: QUICLB, Key: Key{1}, ServerID: []byte{0, 0x70, 0}, NonceLength: 13, Active: true}
	two := one
	two.ID, two.Key = 2, Key{2}
	path := filepath.Join(t.TempDir(), "quic.json")
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(render(Configs{one}))
	loaded, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	g := newGenerator(t, loaded)
	told := make(chan outcome, 16)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.Follow(ctx, path, time.Millisecond, func(cs Configs, err error) { told <- outcome{cs, err} })
	}()
	next := func(what string) outcome {
		t.Helper()
		select {
		case o := <-told:
			return o
		case <-time.After(time.Minute):
			t.Fatalf("nothing is told of %s", what)
		}
		panic("unreachable")
	}
	if o := next("the first content"); o.err != nil || len(o.configs) != 1 {
		t.Fatalf("the first content: %v, %v", o.configs, o.err)
	}
	write(render(Configs{one, two}))
	if o := next("a rotation"); o.err != nil || len(o.configs) != 2 {
		t.Fatalf("a rotation: %v, %v", o.configs, o.err)
	}
	if cid := g.Next(); cid[0]>>5 != 2 {
		t.Fatalf("CID %x after a rotation to config 2", cid)
	}
	write([]byte(`{"configs":[{}]}`))
	if o := next("nonsense"); o.err == nil || !strings.Contains(o.err.Error(), "configs[0].id: missing") {
		t.Fatalf("nonsense: %v", o.err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if o := next("a file that is gone"); o.err == nil || !os.IsNotExist(o.err) {
		t.Fatalf("a file that is gone: %v", o.err)
	}
	if cid := g.Next(); cid[0]>>5 != 2 {
		t.Fatalf("CID %x after nonsense", cid)
	}
	write(render(Configs{one}))
	if o := next("the file when it is back"); o.err != nil {
		t.Fatal(o.err)
	}
	if cid := g.Next(); cid[0]>>5 != 1 {
		t.Fatalf("CID %x, want config 1", cid)
	}
	cancel()
	<-done
	if n := len(told); n != 0 {
		t.Fatalf("%d more outcomes: %v", n, <-told)
	}
}

// TestLoadRefuses: errors name the file.
func TestLoadRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "quic.json")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: %v", err)
	}
	for text, want := range map[string]string{"{}": "configs: none", strings.Repeat(" ", maxFile+1): "at most 65536 bytes"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
