package manager

import (
	"context"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/token"
)

// identify returns the identity of the caller. cause is for the audit log only, not for the caller.
func (g gate) identify(r *http.Request, procedure string) (id identity, cause string, err *connect.Error) {
	forwarded := r.Header.Get(headerCaller)
	r.Header.Del(headerCaller)
	nobody := identity{from: r.RemoteAddr}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		id = certified(r.TLS.PeerCertificates[0], r.RemoteAddr)
		if id.role == pki.RoleManager && g.view.revokedCert(id.cert) {
			return id, "certificate of managers/" + id.name, errBadCertificate
		}
		if forwarded == "" || id.role != pki.RoleManager {
			return id, "", nil
		}
		if !id.expires.After(g.clock.Now()) {
			return id, "", errOldCertificate
		}
		id, cause, err = g.vouched(forwarded)
		if err == nil && id.via == "" && tokenInBody(procedure) {
			err = g.patience(id)
		}
		return id, cause, err
	}
	header := r.Header.Get("Authorization")
	if header == "" {
		if tokenInBody(procedure) {
			err = g.patience(nobody)
		}
		return nobody, "", err
	}
	scheme, bearer, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "bearer") || len(bearer) > maxBearerBytes {
		return nobody, "no bearer token", errBadBearer
	}
	return g.bearer(r.Context(), nobody, strings.TrimSpace(bearer))
}

// vouched returns the identity on whose behalf another manager calls.
func (d *door) vouched(header string) (id identity, cause string, err *connect.Error) {
	id, err = callerOf(header)
	id.forwarded = true
	if err != nil || id.via != viaToken {
		return id, "", err
	}
	// The follower may not have the revocation of the token yet.
	stored := d.view.access(id.access)
	if stored == nil {
		return id, "revoked access token " + id.access, errBadBearer
	}
	id.expires = stored.GetExpires().AsTime()
	return id, "", nil
}

// bearer returns the identity of a bearer token. A source that failed too often gets only a lookup
// in memory.
func (d *door) bearer(ctx context.Context, nobody identity, bearer string) (id identity, cause string, err *connect.Error) {
	switch {
	case strings.HasPrefix(bearer, token.AccessPrefix) || d.oidc == nil:
		// A token that is valid here may have been revoked elsewhere. Invalid tokens cause no wait.
		if id, cause = d.view.bearer(bearer, d.clock.Now()); cause == "" {
			if err := d.current(ctx); err != nil {
				return nobody, "", connect.NewError(connect.CodeUnavailable, err)
			}
			id, cause = d.view.bearer(bearer, d.clock.Now())
		}
	default:
		if _, known := d.oidc.Known(bearer); !known {
			if err := d.patience(nobody); err != nil {
				return nobody, "", err
			}
		}
		if id, cause, err = d.idToken(ctx, bearer); err != nil {
			id.from = nobody.from
			return id, cause, err
		}
	}
	id.from = nobody.from
	if cause != "" {
		return nobody, cause, errBadBearer
	}
	return id, "", nil
}

// patience refuses a source that failed too often, before any other work.
func (d *door) patience(id identity) *connect.Error {
	if wait := d.attempts.wait(id.from, d.clock.Now()); wait > 0 {
		return tooMany("too many failed attempts from this address", wait)
	}
	return nil
}
