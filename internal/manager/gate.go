package manager

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"path"
	"strconv"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/oidc"
	"github.com/shuntlb/shunt/internal/pki"
)

// Bounds of the time and memory that unauthenticated clients can use.
const (
	// bodyTimeout is more than the 54 seconds that the largest request takes at 10 Mbit/s.
	bodyTimeout = time.Minute
	// joinTimeout and maxJoinBytes suffice for a token and a certificate request of less than a
	// kilobyte.
	joinTimeout  = 10 * time.Second
	maxJoinBytes = 16 << 10
	// maxBearerBytes is more than the size of an ID token with a hundred groups.
	maxBearerBytes = 16 << 10
)

// Errors of refused clients. Unknown, expired, revoked and wrong tokens all get the same error.
var (
	errNobody    = connect.NewError(connect.CodeUnauthenticated, errors.New("a client certificate or an access token is required"))
	errBadBearer = connect.NewError(connect.CodeUnauthenticated, errors.New("bearer token: it is unknown, expired, revoked or wrong"))
	// errTenantCompressed is the error of a request whose size would be unknown.
	errTenantCompressed = errors.New("requests of role tenant must not be compressed")
)

// door authenticates and authorizes callers before the API, and limits their rates.
type door struct {
	view *view
	// current returns when the view holds every write acknowledged before the call.
	current  func(context.Context) error
	oidc     *oidc.Verifier // nil without one
	clock    clock.Clock
	audited  func(*apiv1.AuditEntry)
	event    func(*apiv1.Event)
	attempts *attempts
	rates    *rates
	dryRuns  *rates
	lanes    *lanes
	streams  *streams
	reads    *readTurns
	// streamReads is for the messages of streams: as many wait as there may be streams.
	streamReads *readTurns
}

func (m *Manager) newDoor() *door {
	return &door{view: m.view, current: m.current, oidc: m.o.OIDC, clock: m.o.Clock, audited: m.audited, event: m.event, attempts: newAttempts(), rates: newRates(), dryRuns: newRates(), lanes: newLanes(), streams: newStreams(), reads: newReadTurns(tenantReadsWaiting), streamReads: newReadTurns(tenantCalls)}
}

// gate authenticates the caller and checks its rights before anything of a request's body is read.
type gate struct {
	*door
	next   http.Handler
	errors *connect.ErrorWriter
}

// ServeHTTP implements http.Handler.
func (g gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	procedure := r.URL.Path
	if _, known := rights[procedure]; !known {
		http.NotFound(w, r)
		return
	}
	id, err := g.admit(r, procedure)
	if err != nil {
		g.hangUp(w, id)
		g.refuse(w, r, err)
		return
	}
	done, err := g.narrow(w, r, id)
	if err != nil {
		if err.Code() != connect.CodeCanceled { // the caller is gone
			err = g.refused(id, procedure, "", err)
		}
		g.refuse(w, r, err)
		return
	}
	defer done()
	if timeout := readTimeout(procedure); timeout > 0 {
		// Only the connections of tests have no deadlines; Serve's have them.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(timeout))
	}
	if tokenInBody(procedure) {
		r.Body = http.MaxBytesReader(w, r.Body, maxJoinBytes)
	}
	ctx := withIdentity(r.Context(), id)
	if procedure == shuntv1connect.NodeProtocolSyncProcedure || procedure == shuntv1connect.ManagerBackupProcedure {
		ctx = withResponse(ctx, w)
	}
	if readTimeout(procedure) == 0 {
		var end func()
		ctx, end = g.leash(ctx, id)
		defer end()
	}
	g.next.ServeHTTP(w, r.WithContext(ctx))
}

// hangUp closes the connection of a certificate that has expired, because the owner needs another
// connection for its next certificate. A request that a manager forwarded on it has no effect, and
// the manager repeats it.
func (g gate) hangUp(w http.ResponseWriter, id identity) {
	if id.cert == nil || id.forwarded || id.expires.After(g.clock.Now()) {
		return
	}
	w.Header().Set("Connection", "close")
	if id.role == pki.RoleManager {
		w.Header().Set(headerNotLeading, "1")
	}
}

// readTimeout returns the time to read a request; 0 for streams.
func readTimeout(procedure string) time.Duration {
	switch procedure {
	case shuntv1connect.NodeProtocolSyncProcedure, shuntv1connect.ManagerWatchProcedure, shuntv1connect.ManagerEventsProcedure,
		shuntv1connect.ManagerBackupProcedure, shuntv1connect.MemberProtocolRelayProcedure:
		return 0
	}
	if tokenInBody(procedure) {
		return joinTimeout
	}
	return bodyTimeout
}

// admit returns the caller's identity, or an error if it may not call the procedure.
func (g gate) admit(r *http.Request, procedure string) (identity, *connect.Error) {
	id, cause, err := g.identify(r, procedure)
	if err == nil {
		cause, err = g.certificate(r.Context(), id)
	}
	if err == nil {
		err = id.may(procedure)
	}
	// Sync itself responds to a deleted node, and Join checks the token, which may be a new one.
	own := procedure == shuntv1connect.NodeProtocolSyncProcedure || procedure == shuntv1connect.NodeProtocolJoinProcedure
	if err == nil && id.cert != nil && !own && g.view.revokedCert(id.cert) {
		err = denied("node %s was deleted, or its certificates were revoked: it needs a new join token", id.name)
	}
	if err == nil {
		err = g.tenancy(r.Context(), id)
	}
	if err != nil {
		err = g.refused(id, procedure, cause, err)
	}
	return id, err
}

// tenancy returns an error for a caller of a tenant that has no object, whatever its credential,
// because all access ends with the object. Services of a tenant without an object are the
// operator's to change.
func (d *door) tenancy(ctx context.Context, id identity) *connect.Error {
	if id.role != pki.RoleTenant {
		return nil
	}
	// A tenant in the view may have been deleted elsewhere. A caller with an access id has already
	// waited for the view to be current.
	if id.access == "" && d.view.hasTenant(id.tenant) {
		if err := d.current(ctx); err != nil {
			return connect.NewError(connect.CodeUnavailable, err)
		}
	}
	if !d.view.hasTenant(id.tenant) {
		return denied("%s acts for tenants/%s, which does not exist", id.who(), id.tenant)
	}
	return nil
}

// hasTenant reports whether a tenant has an object.
func (v *view) hasTenant(name string) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.state.Tenants[name] != nil
}

// tooMany returns the error of a refusal for the time wait.
func tooMany(what string, wait time.Duration) *connect.Error {
	seconds := strconv.Itoa(int(math.Ceil(wait.Seconds())))
	err := connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%s: try again in %ss", what, seconds))
	err.Meta().Set("Retry-After", seconds)
	return err
}

// refused audits a refusal and returns the error for the caller. A client that failed too often
// gets that as the error, and only the first such refusal is audited.
func (d *door) refused(id identity, procedure, cause string, err *connect.Error) *connect.Error {
	said := err
	if err.Code() == connect.CodeUnauthenticated || id.via == "" && err.Code() == connect.CodePermissionDenied {
		wait, first := d.attempts.fail(id.from, d.clock.Now())
		if wait > 0 {
			said = tooMany("too many failed attempts from this address", wait)
		}
		if wait > 0 && !first {
			return said
		}
	} else if err.Code() == connect.CodeResourceExhausted && id.via == "" {
		return said
	}
	e := &apiv1.AuditEntry{Who: id.who(), Role: id.role, Tenant: id.tenant, From: id.from, Call: path.Base(procedure), Refused: said.Message()}
	if cause != "" {
		e.Refused += " (" + cause + ")"
	}
	d.audited(e)
	return said
}

// refuse sends an error in the caller's protocol.
func (g gate) refuse(w http.ResponseWriter, r *http.Request, err *connect.Error) {
	if err.Code() == connect.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if g.errors.IsSupported(r) {
		_ = g.errors.Write(w, r, err) // the caller is gone
		return
	}
	for key, values := range err.Meta() {
		w.Header()[key] = values
	}
	status := http.StatusForbidden
	switch err.Code() {
	case connect.CodeUnauthenticated:
		status = http.StatusUnauthorized
	case connect.CodeResourceExhausted:
		status = http.StatusTooManyRequests
	case connect.CodeUnavailable:
		status = http.StatusServiceUnavailable
	}
	http.Error(w, err.Message(), status)
}
