package host

import (
	"context"

	"github.com/shuntlb/shunt/internal/health"
)

// watchEvery is how often the counts of clients' connections are read: often enough to detect
// silence soon.
const watchEvery = health.Silence / 4

// handshakes are the results of clients' own connections to a member.
type handshakes struct {
	ref memberRef
	health.Handshakes
}

// Watch applies the results of clients' own connections, for the members whose endpoints request
// that, and releases members whose damping is over.
func (a *Agent) Watch() error {
	a.logFlips(a.checks.release(a.clock.Now()))
	if !a.checks.watches() {
		return nil
	}
	all, err := a.tables.Handshakes(a.checks.watched)
	if err != nil {
		return err
	}
	seen := make([]handshakes, 0, len(all))
	for _, h := range all {
		seen = append(seen, handshakes{
			memberRef{h.Binding.Key, h.Binding.Member}, health.Handshakes{Asked: h.Asked, Accepted: h.Accepted, Refused: h.Refused},
		})
	}
	a.logFlips(a.checks.watch(a.clock.Now(), seen))
	return nil
}

// watch calls Watch every watchEvery until ctx ends.
func watch(ctx context.Context, h *Agent) {
	var last error
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.clock.After(watchEvery):
		}
		err := h.Watch()
		if err != nil && (last == nil || err.Error() != last.Error()) {
			h.log.Error("watch clients' connections", "error", err)
		}
		last = err
	}
}
