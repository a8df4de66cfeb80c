package manager

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/internal/pki"
)

// TestStreamsAreBoundedInAll: all callers share a limit, except for a reserve for admins. Each
// stream that ends makes room for one.
func TestStreamsAreBoundedInAll(t *testing.T) {
	s := newStreams()
	var leave []func()
	open := func(n int, id identity) *connect.Error {
		for range n {
			done, err := s.enter(id)
			if err != nil {
				return err
			}
			leave = append(leave, done)
		}
		return nil
	}
	viewer := func(i int) identity {
		return identity{name: fmt.Sprint("v", i), role: pki.RoleViewer, via: viaToken}
	}
	callers := allStreams / callerStreams
	for i := range callers {
		if err := open(callerStreams, viewer(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := open(1, viewer(0)); err == nil || !strings.Contains(err.Message(), "token v0: too many streams at once: must be at most 200") {
		t.Errorf("one more of the same caller: %v", err)
	}
	if err := open(1, viewer(callers)); err == nil || err.Code() != connect.CodeResourceExhausted || !strings.Contains(err.Message(), "of all callers: must be at most 2000") {
		t.Errorf("one more in all: %v", err)
	}
	if err := open(adminStreams, identity{name: "admin", role: pki.RoleAdmin, via: viaCertificate}); err != nil {
		t.Errorf("an admin's: %v", err)
	}
	if err := open(1, identity{name: "other", role: pki.RoleAdmin, via: viaCertificate}); err == nil {
		t.Error("another admin's: must be refused, as the places for admins are taken")
	}
	for _, end := range leave {
		end()
		end() // counts once
	}
	if s.all != 0 || len(s.callers) != 0 {
		t.Errorf("%d streams of %d callers are left", s.all, len(s.callers))
	}
}
