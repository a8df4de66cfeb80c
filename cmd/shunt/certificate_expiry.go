package main

import (
	"crypto/x509"
	"fmt"
	"time"
)

// expiryWarned is how long before its end the client's certificate is warned of; one that lives for less than twice that is in
// the second half of its life.
const expiryWarned = 14 * 24 * time.Hour

// expiry is the warning about a client certificate at a time; empty when there is none.
func expiry(file string, leaf *x509.Certificate, now time.Time) string {
	end := leaf.NotAfter
	if end.Sub(now) >= min(expiryWarned, end.Sub(leaf.NotBefore)/2) {
		return ""
	}
	verb := "expires"
	if !now.Before(end) {
		verb = "expired"
	}
	return fmt.Sprintf("warning: the client certificate in %s %s at %s: make another (shunt access certificate)", file, verb, end.UTC().Format(time.RFC3339))
}

// warnExpiry tells once of a client certificate that is about to expire, on standard error.
func (g *globals) warnExpiry(file string, leaf *x509.Certificate) {
	if g.note == nil || g.warned {
		return
	}
	if text := expiry(file, leaf, g.now()); text != "" {
		g.warned = true
		g.note(text)
	}
}
