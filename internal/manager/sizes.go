package manager

import (
	"net/http"
	"sync"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/pki"
)

// Limits of what a request may have. What is read takes 50 times as much at worst: an object with nothing in it has two bytes.
const (
	// maxRequestBytes: a report of 20,000 endpoints with 10 members each at 100 bytes is 20 MB.
	maxRequestBytes = 64 << 20
	// maxTenantBytes: a Policy with 100,000 prefixes has 2 MB, or 5 MB of JSON.
	maxTenantBytes = 8 << 20
	// maxAskBytes: a question has names, addresses and numbers.
	maxAskBytes = 64 << 10
	// tenantWrites of a tenant are read and done at once; others of it wait. Writes are done one after the other anyhow.
	tenantWrites = 2
)

// sized are the procedures whose requests may be large.
var sized = map[string]bool{
	shuntv1connect.ManagerApplyProcedure:        true,
	shuntv1connect.ManagerDeleteProcedure:       true,
	shuntv1connect.NodeProtocolSyncProcedure:    true,
	shuntv1connect.MemberProtocolRelayProcedure: true,
}

// maxBytes bounds a message of the procedure, as it is sent and as it is when it was decompressed.
func maxBytes(procedure string) int {
	switch {
	case tokenInBody(procedure):
		return maxJoinBytes
	case sized[procedure]:
		return maxRequestBytes
	}
	return maxAskBytes
}

// encodings are the headers that say how a body is compressed, by protocol.
var encodings = []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"}

// narrow bounds what a tenant's writes make the manager hold: a tenant must not be able to end the manager for all. done is called
// when the write was served.
func (d *door) narrow(w http.ResponseWriter, r *http.Request, id identity) (done func(), err *connect.Error) {
	if id.role != pki.RoleTenant || !sized[r.URL.Path] {
		return func() {}, nil
	}
	// A kilobyte may be a megabyte that was compressed.
	for _, h := range encodings {
		if e := r.Header.Get(h); e != "" && e != "identity" {
			return nil, connect.NewError(connect.CodeUnimplemented, errTenantCompressed)
		}
	}
	if done = d.lanes.enter(r.Context().Done(), id.tenant); done == nil {
		return nil, connect.NewError(connect.CodeCanceled, r.Context().Err())
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxTenantBytes)
	return done, nil
}

// lanes let so many calls of a tenant through at once.
type lanes struct {
	mu      sync.Mutex
	tenants map[string]*lane
}

// lane is one tenant's; users are those who hold or want a place.
type lane struct {
	places chan struct{}
	users  int
}

func newLanes() *lanes { return &lanes{tenants: map[string]*lane{}} }

// enter waits for a place, which leave gives back; nil when gone closes first.
func (l *lanes) enter(gone <-chan struct{}, tenant string) (leave func()) {
	l.mu.Lock()
	mine := l.tenants[tenant]
	if mine == nil {
		mine = &lane{places: make(chan struct{}, tenantWrites)}
		l.tenants[tenant] = mine
	}
	mine.users++
	l.mu.Unlock()
	end := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(l.tenants, tenant)
		}
	}
	select {
	case mine.places <- struct{}{}:
	case <-gone:
		end()
		return nil
	}
	return func() {
		<-mine.places
		end()
	}
}
