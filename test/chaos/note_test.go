package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// note is a policy that one client writes once and perhaps deletes. Checking it needs no order of
// calls.
type note struct {
	owner   int
	value   uint64
	written certainty
	deleted certainty
}

// certainty is a client's knowledge of the effect of its call.
type certainty int

// The certainties.
const (
	no certainty = iota
	perhaps
	yes
)

// jot writes a note through any manager, and sometimes deletes one.
func (h *history) jot(client int, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	manager := fmt.Sprintf("manager%d", 1+random.IntN(cluster.Topology.Managers))
	h.mu.Lock()
	name, n := fmt.Sprintf("note%d", len(h.notes)), note{owner: client, value: 1 + random.Uint64N(1_000_000), written: perhaps}
	h.notes[name] = n
	h.mu.Unlock()
	_, err := managers[manager].Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{
		{Kind: &apiv1.Object_Policy{Policy: &apiv1.Policy{Name: name, Limits: &apiv1.Limits{Packets: n.value}}}},
	}}))
	n.written = h.became(manager, err)
	if n.written == yes && random.IntN(3) == 0 {
		_, err := managers[manager].Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: "Policy", Name: name}}}))
		n.deleted = h.became(manager, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes[name] = n
}

// became returns whether a write took effect.
func (h *history) became(manager string, err error) certainty {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.ackedLocked()
		return yes
	case h.failedLocked(manager, err):
		h.unknown++
		return perhaps
	}
	return no
}

// lost returns the promises that a member's policies break.
func lost(notes map[string]note, policies map[string]uint64) error {
	var errs []error
	for name, n := range notes {
		value, there := policies[name]
		switch {
		case there && value != n.value:
			errs = append(errs, fmt.Errorf("%s is %d, was written as %d", name, value, n.value))
		case !there && n.written == yes && n.deleted == no:
			errs = append(errs, fmt.Errorf("%s was acknowledged and is not there", name))
		case there && n.deleted == yes:
			errs = append(errs, fmt.Errorf("%s is there, and its deletion was acknowledged", name))
		case there && n.written == no:
			errs = append(errs, fmt.Errorf("%s is there, and was refused", name))
		}
	}
	return errors.Join(errs...)
}

// checkNotes compares the policies of each manager with the promises.
func (h *history) checkNotes() {
	h.t.Helper()
	promised, deleted := 0, 0
	for _, n := range h.notes {
		if n.written == yes {
			promised++
		}
		if n.deleted == yes {
			deleted++
		}
	}
	h.t.Logf("%d notes: %d acknowledged, %d of these deleted", len(h.notes), promised, deleted)
	for name, c := range managers {
		res, err := c.Get(h.t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Policy"}))
		if err != nil {
			h.t.Errorf("%s: %v", name, err)
			continue
		}
		policies := map[string]uint64{}
		for _, o := range res.Msg.GetObjects() {
			policies[o.GetPolicy().GetName()] = o.GetPolicy().GetLimits().GetPackets()
		}
		if err := lost(h.notes, policies); err != nil {
			h.t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNotesFindLies checks that the comparison can fail.
func TestNotesFindLies(t *testing.T) {
	for name, c := range map[string]struct {
		n     note
		there uint64
		fine  bool
	}{
		"acknowledged":             {note{value: 1, written: yes}, 1, true},
		"lost":                     {note{value: 1, written: yes}, 0, false},
		"another value":            {note{value: 1, written: yes}, 2, false},
		"deleted":                  {note{value: 1, written: yes, deleted: yes}, 0, true},
		"back":                     {note{value: 1, written: yes, deleted: yes}, 1, false},
		"perhaps deleted, there":   {note{value: 1, written: yes, deleted: perhaps}, 1, true},
		"perhaps deleted, gone":    {note{value: 1, written: yes, deleted: perhaps}, 0, true},
		"perhaps written, there":   {note{value: 1, written: perhaps}, 1, true},
		"perhaps written, missing": {note{value: 1, written: perhaps}, 0, true},
		"refused and there":        {note{value: 1}, 1, false},
	} {
		policies := map[string]uint64{}
		if c.there != 0 {
			policies["x"] = c.there
		}
		if err := lost(map[string]note{"x": c.n}, policies); (err == nil) != c.fine {
			t.Errorf("%s: %v", name, err)
		}
	}
}
