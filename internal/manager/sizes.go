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

// Limits of what a request may have. What is read takes 50 times as much at worst: an object with nothing in it has two bytes.
const (
	// maxRequestBytes: an apply of 20,000 services of 1,000 bytes, or 3,000 of JSON, is 60 MB.
	maxRequestBytes = 64 << 20
	// maxTenantBytes: a Policy with 100,000 prefixes has 2 MB, or 5 MB of JSON.
	maxTenantBytes = 8 << 20
	// maxAskBytes: a question has names, addresses and numbers.
	maxAskBytes = 64 << 10
	// tenantCalls of a tenant, streams too, are served at once by a manager: each costs 30 kB.
	tenantCalls = 1000
	// tenantWrites of a tenant are read and done at once; others of it wait. Writes are done one after the other anyhow.
	tenantWrites = 2
)

// Limits of one report of a node: what a node of the largest size has to say.
const (
	// maxMuxReport: its status has each member of its tables, 524,288 by default (--max-members), at 110 bytes at most
	// but for long names: 58 MB. One with larger tables that are full goes on, and its status is left out.
	maxMuxReport = 64 << 20
	// maxHostReport: its verdicts are of each of 65,536 bindings (LIMIT_BINDINGS) and of 131,072 members that it has no room for, at most 72 bytes
	// each: 14 MB; its status has reasons and tables alone, a few KiB, and 1,024 withheld VIPs of 600 bytes at most.
	maxHostReport = 16 << 20
	// maxRelayBytes: a report that was taken in, the node's hello, and who says it.
	maxRelayBytes = maxMuxReport + 64<<10
)

// maxReport bounds a report by the role in the node's certificate.
func maxReport(role string) int {
	if role == string(lb.RoleMux) {
		return maxMuxReport
	}
	return maxHostReport
}

// sized are the procedures whose requests may be large.
var sized = map[string]bool{
	shuntv1connect.ManagerApplyProcedure:  true,
	shuntv1connect.ManagerDeleteProcedure: true,
}

// maxBytes bounds a message of the procedure, as it is sent and as it is when it was decompressed. Those of Sync are bounded by role.
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

// encodings are the headers that say how a body is compressed, by protocol.
var encodings = []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"}

// narrow bounds what a call makes the manager hold. done is called when the call was served.
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

// narrowTenant bounds what a tenant's calls make the manager hold: a tenant must not be able to end the manager for all.
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
	// A kilobyte may be a megabyte that was compressed.
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

// lanes count the calls of tenants that are served.
type lanes struct {
	mu      sync.Mutex
	tenants map[string]*lane
}

// lane is one tenant's.
type lane struct {
	all    *lanes
	tenant string
	// writes has an element for each that is read or done.
	writes chan struct{}
	calls  int // all.mu guards it; never 0
}

func newLanes() *lanes { return &lanes{tenants: map[string]*lane{}} }

// enter begins a call, which leave ends; nil when there are too many.
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
