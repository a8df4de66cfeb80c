package manager

import (
	"fmt"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// Limits of a request. A decoded request takes at most 50 times its size, because an empty object
// has two bytes.
const (
	// maxRequestBytes bounds an apply: 20,000 services of 1,000 bytes, or 3,000 of JSON, are 60 MB.
	maxRequestBytes = 64 << 20
	// maxTenantBytes bounds an apply of a tenant: a Policy with 100,000 prefixes has 2 MB, or 5 MB
	// of JSON.
	maxTenantBytes = 8 << 20
	// maxAskBytes bounds other requests, which contain names, addresses and numbers.
	maxAskBytes = 64 << 10
	// tenantCalls is the number of calls of a tenant, streams included, that a manager serves
	// concurrently. Each costs 30 kB.
	tenantCalls = 1000
	// tenantWrites is the number of writes of a tenant that are read and executed concurrently.
	// Others wait. Writes are executed one after the other anyway.
	tenantWrites = 2
)

// Limits of one report of a node, enough for a node of the largest size.
const (
	// maxMuxReport bounds a mux's report. Its status has each member of its tables, 524,288 by
	// default (--max-members), at 110 bytes at most except for long names: 58 MB. A mux with larger
	// tables that are full keeps working, and its status is left out.
	maxMuxReport = 64 << 20
	// maxHostReport bounds a host's report. Its verdicts cover 65,536 bindings (LIMIT_BINDINGS) and
	// 131,072 members beyond its tables, at most 72 bytes each: 14 MB. Its status has only reasons
	// and tables, a few KiB, and 1,024 withheld VIPs of 600 bytes at most.
	maxHostReport = 16 << 20
	// maxRelayBytes bounds a relayed report, together with the node's hello and its identity.
	maxRelayBytes = maxMuxReport + 64<<10
)

// maxReport returns the maximum size of a report for the role in the node's certificate.
func maxReport(role string) int {
	if role == string(lb.RoleMux) {
		return maxMuxReport
	}
	return maxHostReport
}

// sized lists the procedures whose requests may be large.
var sized = map[string]bool{
	shuntv1connect.ManagerApplyProcedure:  true,
	shuntv1connect.ManagerDeleteProcedure: true,
}

// maxBytes returns the maximum size of a message of the procedure, both as sent and decompressed.
// Messages of Sync are bounded by role.
func maxBytes(procedure string) int {
	switch {
	case procedure == shuntv1connect.MemberProtocolRelayProcedure:
		return maxRelayBytes
	case tokenInBody(procedure):
		return maxJoinBytes
	case sized[procedure]:
		return maxRequestBytes
	}
	return maxAskBytes
}

// encodings lists the headers that name the compression of a body, by protocol.
var encodings = []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"}

// narrow bounds the memory that a call makes the manager hold. done must be called when the call
// was served.
func (d *door) narrow(w http.ResponseWriter, r *http.Request, id identity) (done func(), err *connect.Error) {
	leave := func() {}
	if streamed[r.URL.Path] {
		if leave, err = d.streams.enter(id); err != nil {
			return nil, err
		}
	}
	mine, err := d.narrowTenant(w, r, id)
	if err != nil {
		leave()
		return nil, err
	}
	return func() {
		mine()
		leave()
	}, nil
}

// narrowTenant bounds the memory that a tenant's calls make the manager hold, because a tenant must
// not be able to crash the manager for all.
func (d *door) narrowTenant(w http.ResponseWriter, r *http.Request, id identity) (done func(), err *connect.Error) {
	if id.role != pki.RoleTenant {
		return func() {}, nil
	}
	mine := d.lanes.enter(id.tenant)
	if mine == nil {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("tenants/%s: too many calls at once: must be at most %d", id.tenant, tenantCalls))
	}
	if !sized[r.URL.Path] {
		return mine.leave, nil
	}
	defer func() {
		if err != nil {
			mine.leave()
		}
	}()
	// A compressed kilobyte may expand to a megabyte.
	for _, h := range encodings {
		if e := r.Header.Get(h); e != "" && e != "identity" {
			return nil, connect.NewError(connect.CodeUnimplemented, errTenantCompressed)
		}
	}
	select {
	case mine.writes <- struct{}{}:
	case <-r.Context().Done():
		return nil, connect.NewError(connect.CodeCanceled, r.Context().Err())
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxTenantBytes)
	return func() {
		<-mine.writes
		mine.leave()
	}, nil
}

// lanes counts the calls of tenants that are being served.
type lanes struct {
	mu      sync.Mutex
	tenants map[string]*lane
}

// lane counts the calls of one tenant.
type lane struct {
	all    *lanes
	tenant string
	// writes has an element for each write that is read or executed.
	writes chan struct{}
	calls  int // all.mu guards it; never 0
}

func newLanes() *lanes { return &lanes{tenants: map[string]*lane{}} }

// enter begins a call, which leave ends. It returns nil if there are too many.
func (l *lanes) enter(tenant string) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine := l.tenants[tenant]
	if mine == nil {
		mine = &lane{all: l, tenant: tenant, writes: make(chan struct{}, tenantWrites)}
		l.tenants[tenant] = mine
	}
	if mine.calls >= tenantCalls {
		return nil
	}
	mine.calls++
	return mine
}

func (l *lane) leave() {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	if l.calls--; l.calls == 0 {
		delete(l.all.tenants, l.tenant)
	}
}
