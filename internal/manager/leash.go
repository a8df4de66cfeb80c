package manager

import (
	"context"
	"errors"
	"slices"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// Causes of the end of a call's context.
var (
	errRevoked            = connect.NewError(connect.CodeUnauthenticated, errors.New("the access token was revoked"))
	errExpired            = connect.NewError(connect.CodeUnauthenticated, errors.New("the access token has expired"))
	errRevokedCertificate = connect.NewError(connect.CodeUnauthenticated, errors.New("the certificate was revoked"))
	errExpiredCertificate = connect.NewError(connect.CodeUnauthenticated, errors.New("the certificate has expired"))
	errNoTenant           = connect.NewError(connect.CodePermissionDenied, errors.New("the tenant was deleted"))
)

// leash ends a call when its credential or its tenant ends. A stream does not outlive the token or
// certificate that opened it, which includes the certificates of nodes and managers.
type leash struct {
	identity
	view   *view
	clock  clock.Clock
	cancel context.CancelCauseFunc
}

// leash returns the context of a call by the identity.
func (d *door) leash(ctx context.Context, id identity) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	l := &leash{id, d.view, d.clock, cancel}
	// The many streams of nodes need not see any change.
	if id.access != "" || id.role == pki.RoleTenant || id.isManager() {
		d.view.subscribe(l)
	}
	// Check for changes before the subscription.
	if id.access != "" && d.view.access(id.access) == nil {
		l.gone()
	}
	if id.role == pki.RoleTenant && !d.view.hasTenant(id.tenant) {
		cancel(errNoTenant)
	}
	if id.isManager() && d.view.revokedCert(id.cert) {
		cancel(errRevokedCertificate)
	}
	if !id.expires.IsZero() {
		go func() {
			select {
			case <-d.clock.After(id.expires.Sub(d.clock.Now())):
				l.cancel(l.expired())
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() {
		d.view.unsubscribe(l)
		cancel(nil)
	}
}

// note implements subscriber.
func (l *leash) note(c change) {
	if slices.Contains(c.revoked, l.access) {
		l.gone()
	}
	if c.managersRevoked && l.isManager() && l.view.revokedLocked(l.cert) {
		l.cancel(errRevokedCertificate)
	}
	// The view is locked, and its maps include the change.
	if l.role == pki.RoleTenant && slices.Contains(c.objects, ref{lb.KindTenant, l.tenant}) && l.view.state.Tenants[l.tenant] == nil {
		l.cancel(errNoTenant)
	}
}

// gone ends the call because its token or certificate is no longer stored. It may have expired,
// because expired ones are swept.
func (l *leash) gone() {
	switch {
	case !l.clock.Now().Before(l.expires):
		l.cancel(l.expired())
	case l.via == viaCertificate:
		l.cancel(errRevokedCertificate)
	default:
		l.cancel(errRevoked)
	}
}

// isManager reports whether a manager calls for itself.
func (id identity) isManager() bool {
	return id.cert != nil && id.role == pki.RoleManager && !id.forwarded
}

func (l *leash) expired() error {
	if l.via == viaCertificate {
		return errExpiredCertificate
	}
	return errExpired
}

// snapped returns the error with which the leash ended a call, or nil.
func snapped(ctx context.Context) error {
	cause := context.Cause(ctx)
	for _, end := range []*connect.Error{errRevoked, errExpired, errRevokedCertificate, errExpiredCertificate, errNoTenant} {
		if errors.Is(cause, end) {
			return end
		}
	}
	return nil
}
