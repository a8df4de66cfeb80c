package manager

import (
	"context"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// TestReadsOfATenantTakeTurns: one tenant's reads wait for each other, up to a limit, and another
// tenant's do not wait.
func TestReadsOfATenantTakeTurns(t *testing.T) {
	turns := newReadTurns(tenantReadsWaiting)
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
	turns.mu.Lock() // the last reads may just be ending
	defer turns.mu.Unlock()
	if len(turns.tenants) > 1 {
		t.Errorf("%d tenants are remembered", len(turns.tenants))
	}
}

// TestStreamsOfATenantTakeTurns: messages are computed for only a few of a tenant's streams
// concurrently. Other tenants' streams do not wait.
func TestStreamsOfATenantTakeTurns(t *testing.T) {
	g := guard{&door{streamReads: newReadTurns(tenantCalls)}}
	shop := g.withTurns(t.Context(), "shop")
	for range tenantReads {
		if _, err := takeTurn(shop); err != nil {
			t.Fatal(err)
		}
	}
	gone, leave := context.WithCancel(shop)
	leave()
	if _, err := takeTurn(gone); err == nil {
		t.Error("a stream beyond the bound does not wait")
	}
	for who, ctx := range map[string]context.Context{"another tenant": g.withTurns(t.Context(), "media"), "another role": t.Context()} {
		end, err := takeTurn(ctx)
		if err != nil {
			t.Fatalf("%s: %v", who, err)
		}
		end()
	}
}

// TestOthersObjectsCostATenantsStreamNothing: a tenant's Watch and Events do no work for objects
// that the tenant may not see.
func TestOthersObjectsCostATenantsStreamNothing(t *testing.T) {
	s := newScribe(t)
	mine, theirs := ref{lb.KindPolicy, "mine"}, ref{lb.KindPolicy, "theirs"}
	for r, tenant := range map[ref]string{mine: "shop", theirs: "media"} {
		s.m.view.records[r] = &record{obj: &lb.Policy{Name: r.name, Tenant: tenant}, stored: convert.ToObject(&lb.Policy{Name: r.name, Tenant: tenant})}
		s.m.event(&apiv1.Event{Kind: string(r.kind), Name: r.name, Tenant: tenant, Reason: reasonApplied, Message: "created"})
	}
	s.write()
	o := &observer{by: identity{role: pki.RoleTenant, tenant: "shop"}, dirty: map[ref]bool{mine: true, theirs: true}}
	res := o.response(s.m.view)
	if len(res.GetUpserted()) != 1 || refOfObject(res.GetUpserted()[0]) != mine || len(res.GetDeleted()) != 1 {
		t.Errorf("Watch makes %v", res)
	}
	s.expectEvents(eventFilter{tenant: "shop"}, "Policy mine Applied")
}
