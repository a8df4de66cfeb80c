package manager

import (
	"context"
	"testing"

	"connectrpc.com/connect"
)

// TestReadsOfATenantTakeTurns: one tenant's reads wait for each other, up to a number, and another tenant's do not wait.
func TestReadsOfATenantTakeTurns(t *testing.T) {
	turns := newReadTurns()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ends []func()
	for range tenantReads {
		end, err := turns.begin(ctx, "shop")
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	gone, leave := context.WithCancel(ctx)
	leave()
	if _, err := turns.begin(gone, "shop"); err == nil {
		t.Error("a read beyond the bound does not wait")
	}
	end, err := turns.begin(ctx, "media")
	if err != nil {
		t.Fatalf("another tenant's read: %v", err)
	}
	end()
	begun := make(chan error)
	for range tenantReadsWaiting {
		go func() {
			end, err := turns.begin(ctx, "shop")
			begun <- err
			if err == nil {
				end()
			}
		}()
	}
	for {
		turns.mu.Lock()
		calls := turns.tenants["shop"].calls
		turns.mu.Unlock()
		if calls == tenantReads+tenantReadsWaiting {
			break
		}
	}
	if _, err := turns.begin(ctx, "shop"); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a read beyond those that wait: %v", err)
	}
	for _, end := range ends {
		end()
	}
	for range tenantReadsWaiting {
		if err := <-begun; err != nil {
			t.Errorf("a read that waited: %v", err)
		}
	}
	if len(turns.tenants) > 1 {
		t.Errorf("%d tenants are remembered", len(turns.tenants))
	}
}
