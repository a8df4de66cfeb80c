package bgp

import (
	"context"
	"slices"
	"sync"
)

// Fake is an in-memory speaker whose peers are established immediately.
type Fake struct {
	mu      sync.Mutex
	state   State
	history []State
	err     error
	closed  bool
	process Process
	keeps   bool
}

var _ Speaker = (*Fake)(nil)

// Set implements Speaker.
func (f *Fake) Set(_ context.Context, want State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.state = want.Clone()
	f.history = append(f.history, f.state)
	return nil
}

// Status implements Speaker.
func (f *Fake) Status(context.Context) (Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return Status{}, f.err
	}
	return Status{Routes: slices.Clone(f.state.Routes), Peers: f.peersLocked(), Process: f.process}, nil
}

// Peers implements Speaker.
func (f *Fake) Peers(context.Context) ([]PeerStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.peersLocked(), f.err
}

func (f *Fake) peersLocked() (out []PeerStatus) {
	for _, p := range f.state.Peers {
		ps := PeerStatus{Address: p.Address, State: "established", GracefulRestart: f.keeps}
		if p.BFD != nil {
			ps.BFD = "up"
		}
		out = append(out, ps)
	}
	return out
}

// Close implements Speaker.
func (f *Fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.closed = State{}, true
	return nil
}

// Fail makes the following calls return err; nil ends that.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// RunAs sets the process that the speaker reports.
func (f *Fake) RunAs(p Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.process = p
}

// KeepRoutes makes all routers support graceful restart.
func (f *Fake) KeepRoutes() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keeps = true
}

// State returns the last state set.
func (f *Fake) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.Clone()
}

// History returns every state that was set, in order.
func (f *Fake) History() []State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.history)
}

// Closed reports whether Close was called.
func (f *Fake) Closed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}
