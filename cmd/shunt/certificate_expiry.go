package main

import (
	"crypto/x509"
	"fmt"
	"time"
)

// expiryWarned is the remaining lifetime of the client certificate below which a warning is
// printed. For a lifetime below twice that, the warning is printed in its second half.
const expiryWarned = 14 * 24 * time.Hour

// expiry returns the warning about a client certificate at the time now, or "" if none is due.
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

// warnExpiry prints one warning on standard error if a client certificate is about to expire.
func (g *globals) warnExpiry(file string, leaf *x509.Certificate) {
	if g.note == nil || g.warned {
		return
	}
	if text := expiry(file, leaf, g.now()); text != "" {
		g.warned = true
		g.note(text)
	}
}
