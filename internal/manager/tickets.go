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

// tickets keeps the keys of a server's session tickets (RFC 8446 §4.6.1) up to date. They are derived from the key of the
// store, which every manager of a cluster has: what one of them gave is good at all, and after a restart. So when all
// nodes come back at once, none needs the four signatures and checks of a whole handshake. Who has that key has the CA's,
// too, and can be anybody without tickets.
//
// A resumed session carries the client's certificate of the handshake that began it. It ends as that certificate does:
// its expiry and its chain are looked at again at each resumption, and whether it was revoked at each call.
type tickets struct {
	key []byte

	mu      sync.Mutex
	configs []*tls.Config
}

// serve makes cfg one whose keys are kept up to date.
func (t *tickets) serve(cfg *tls.Config, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.configs = append(t.configs, cfg)
	cfg.SetSessionTicketKeys(t.keys(now))
}

// renew is to be called more than once in a ticketDay.
func (t *tickets) renew(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, cfg := range t.configs {
		cfg.SetSessionTicketKeys(t.keys(now))
	}
}

// keys are the present day's, that of the day before for what was given then, and the next one's for managers whose clocks
// are ahead. The first makes new tickets.
func (t *tickets) keys(now time.Time) [][32]byte {
	day := now.Unix() / int64(ticketDay/time.Second)
	var out [][32]byte
	for _, d := range []int64{day, day - 1, day + 1} {
		key, err := hkdf.Expand(sha256.New, t.key, fmt.Sprintf("shunt tls tickets %d", d), 32)
		if err != nil {
			panic(err) // only when too much is asked for
		}
		out = append(out, [32]byte(key))
	}
	return out
}
