package manager

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"sync"
	"time"
)

// ticketDay is how long one key makes tickets.
const ticketDay = 24 * time.Hour

// tickets keeps the keys of a server's session tickets (RFC 8446 §4.6.1) up to date. They are
// derived from the key of the store, which every manager of a cluster has, so a ticket is valid at
// all managers and after a restart. When all nodes reconnect together, none needs the four
// signatures and checks of a full handshake. The shared key adds no risk: an attacker who has it
// also has the CA's key, and can impersonate any client without tickets.
//
// A resumed session carries the client's certificate of the original handshake. It ends with that
// certificate: expiry and chain are checked at each resumption, and revocation at each call.
type tickets struct {
	key []byte

	mu      sync.Mutex
	configs []*tls.Config
}

// serve sets the ticket keys of cfg and keeps them up to date.
func (t *tickets) serve(cfg *tls.Config, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.configs = append(t.configs, cfg)
	cfg.SetSessionTicketKeys(t.keys(now))
}

// renew updates the keys of all configurations. Call it more than once per ticketDay.
func (t *tickets) renew(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, cfg := range t.configs {
		cfg.SetSessionTicketKeys(t.keys(now))
	}
}

// keys returns the keys of the current day, of the previous day for tickets issued then, and of the
// next day for managers whose clocks are ahead. The first one makes new tickets.
func (t *tickets) keys(now time.Time) [][32]byte {
	day := now.Unix() / int64(ticketDay/time.Second)
	var out [][32]byte
	for _, d := range []int64{day, day - 1, day + 1} {
		key, err := hkdf.Expand(sha256.New, t.key, fmt.Sprintf("shunt tls tickets %d", d), 32)
		if err != nil {
			panic(err) // only if the requested length is too large
		}
		out = append(out, [32]byte(key))
	}
	return out
}
