package sim

import "github.com/shuntlb/shunt/internal/cookie"

// way is a rule in a story. Eras come with their number.
type way interface {
	// settle assigns a server to connection number n, which begins in an era.
	settle(at int, e *era, n int, c *connection)
	// reaches reports whether its packets reach that server in an era. If so, the server replies.
	reaches(at int, e *era, c *connection) bool
}

// wayOf returns a rule for a story of `eras` eras.
func wayOf(rule Rule, eras int) way {
	switch rule {
	case Published:
		return publishedWay{}
	case Cookies:
		return cookieWay{newKey: eras / 2}
	}
	return ringWay{rule}
}

// ringWay are the rules by which a hash selects the server.
type ringWay struct{ rule Rule }

func (w ringWay) settle(_ int, e *era, _ int, c *connection) {
	switch w.rule {
	case Modulo:
		c.home = e.modulo(c.hash)
	case Beamer:
		c.home, _ = e.beamer.owners(c.hash)
	default:
		c.home = e.owner(c.hash)
	}
}

func (w ringWay) reaches(_ int, e *era, c *connection) bool {
	switch w.rule {
	case Modulo:
		return e.modulo(c.hash) == c.home
	case PreviousRing:
		return e.owner(c.hash) == c.home || e.ownerBefore(c.hash) == c.home
	case Beamer:
		now, before := e.beamer.owners(c.hash)
		return now == c.home || before == c.home
	case LastOwner:
		return e.owner(c.hash) == c.home || e.former(c.hash) == c.home
	}
	return e.owner(c.hash) == c.home
}

// publishedWay assigns connections to servers in turn, as any scheduler may, and finds them by
// Cheetah's cookies. Servers keep their index.
type publishedWay struct{}

func (publishedWay) settle(_ int, e *era, n int, c *connection) {
	c.home = e.taking[n%len(e.taking)]
	c.cookie = publishedCookie(c.home, c.hash)
}

func (publishedWay) reaches(_ int, e *era, c *connection) bool {
	id := publishedCookie(c.cookie, c.hash)
	return e.has(id) && id == c.home
}

// publishedBits is the size of Cheetah's cookie: one of the upper 16 bits of a timestamp is the
// version.
const publishedBits = 15

// publishedCookie converts a server's index to Cheetah's cookie, and back: XOR with a hash of the
// connection.
func publishedCookie(index uint16, hash uint64) uint16 {
	return (index ^ uint16(hash)) & (1<<publishedBits - 1)
}

// cookieWay assigns connections to servers in turn, as any scheduler may, and finds them by Shunt's
// cookies. From era newKey on servers stamp with the next key. A connection's cookie is that of its
// last packet.
type cookieWay struct{ newKey int }

// cookieKeys are the two keys of the VIP, by key id.
var cookieKeys = [2][16]byte{{1, 2, 3, 4}, {5, 6, 7, 8}}

// cookieSecrets are the orders in which the keys shuffle member ids, as with all keys that managers
// make.
var cookieSecrets = [2]cookie.Secret{cookie.SecretOf(cookieKeys[0]), cookie.SecretOf(cookieKeys[1])}

// encodeCookie returns Shunt's cookie of a member under the key of an id. decodeCookie returns the
// member of a cookie.
func encodeCookie(f cookie.Flow, kid uint8, id uint16) uint16 {
	return cookie.Encode(cookie.PRF(cookieKeys[kid], f), kid, id, cookieSecrets[kid])
}

func decodeCookie(f cookie.Flow, c uint16) (id uint16, ok bool) {
	kid := cookie.KeyID(c)
	return cookie.Decode(cookie.PRF(cookieKeys[kid], f), c, cookieSecrets[kid])
}

// stamp sets the cookie that servers stamp with in an era.
func (w cookieWay) stamp(at int, c *connection) {
	kid := uint8(0)
	if at >= w.newKey {
		kid = 1
	}
	c.cookie = encodeCookie(c.bound(), kid, c.home)
}

func (w cookieWay) settle(at int, e *era, n int, c *connection) {
	c.home = e.taking[n%len(e.taking)]
	w.stamp(at, c)
}

func (w cookieWay) reaches(at int, e *era, c *connection) bool {
	id, ok := decodeCookie(c.bound(), c.cookie)
	w.stamp(at, c)
	return ok && e.has(id) && id == c.home
}
