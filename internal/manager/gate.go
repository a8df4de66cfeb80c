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

// Limits of what strangers may make the manager wait for and keep.
const (
	// bodyTimeout: the largest request at 10 Mbit/s takes 54 seconds.
	bodyTimeout = time.Minute
	// joinTimeout and maxJoinBytes: a token and a certificate request are less than a kilobyte.
	joinTimeout  = 10 * time.Second
	maxJoinBytes = 16 << 10
	// maxBearerBytes: an ID token with a hundred groups has less.
	maxBearerBytes = 16 << 10
)

// What is said to those who are refused. Unknown, expired, revoked and wrong tokens all get the same answer.
var (
	errNobody    = connect.NewError(connect.CodeUnauthenticated, errors.New("a client certificate or an access token is required"))
	errBadBearer = connect.NewError(connect.CodeUnauthenticated, errors.New("bearer token: it is unknown, expired, revoked or wrong"))
	// errTenantCompressed is of a request whose size would not be known.
	errTenantCompressed = errors.New("requests of role tenant must not be compressed")
)

// door is what callers pass before the API: who they are, what they may, and how often.
type door struct {
	view *view
	// current returns when the view holds all that was acknowledged before the call.
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
	// streamReads are for what streams send: as many wait as there may be streams.
	streamReads *readTurns
}

func (m *Manager) newDoor() *door {
	return &door{view: m.view, current: m.current, oidc: m.o.OIDC, clock: m.o.Clock, audited: m.audited, event: m.event, attempts: newAttempts(), rates: newRates(), dryRuns: newRates(), lanes: newLanes(), streams: newStreams(), reads: newReadTurns(tenantReadsWaiting), streamReads: newReadTurns(tenantCalls)}
}

// gate finds out who calls and checks rights before anything of a request's body is read.
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
		// A connection without deadlines is one of a test; Serve's have them.
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

// hangUp ends the connection of a certificate that has expired: with the one that replaces it its owner needs another connection.
// What a manager forwarded on it is not done, and the manager asks again.
func (g gate) hangUp(w http.ResponseWriter, id identity) {
	if id.cert == nil || id.forwarded || id.expires.After(g.clock.Now()) {
		return
	}
	w.Header().Set("Connection", "close")
	if id.role == pki.RoleManager {
		w.Header().Set(headerNotLeading, "1")
	}
}

// readTimeout bounds the reading of a request; 0 is for streams.
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

// admit says who calls, or refuses.
func (g gate) admit(r *http.Request, procedure string) (identity, *connect.Error) {
	id, cause, err := g.identify(r, procedure)
	if err == nil {
		cause, err = g.certificate(r.Context(), id)
	}
	if err == nil {
		err = id.may(procedure)
	}
	// Sync answers a deleted node itself; Join judges the token, which may be a new one.
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

// tenancy refuses whoever acts for a tenant that has no object, by whatever they proved who they are: with the object ends
// all access. Services of a tenant without an object are the operator's to change.
func (d *door) tenancy(ctx context.Context, id identity) *connect.Error {
	if id.role != pki.RoleTenant {
		return nil
	}
	// What is there here may have been deleted elsewhere. Who has an id has waited for that already.
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

// hasTenant tells whether a tenant has an object.
func (v *view) hasTenant(name string) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.state.Tenants[name] != nil
}

// tooMany refuses until wait is over.
func tooMany(what string, wait time.Duration) *connect.Error {
	seconds := strconv.Itoa(int(math.Ceil(wait.Seconds())))
	err := connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%s: try again in %ss", what, seconds))
	err.Meta().Set("Retry-After", seconds)
	return err
}

// refused notes a refusal and returns what the caller hears. Whoever failed too often hears that instead, and only the
// first time is audited.
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

// refuse answers in the caller's protocol.
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
