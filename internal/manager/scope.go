package manager

import (
	"errors"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// tenantOf is the tenant that owns an object. shared is an object that no tenant owns and every tenant may use: a
// Policy without one. Nodes and Networks are the operator's.
func tenantOf(o *apiv1.Object) (tenant string, shared bool) {
	switch k := o.GetKind().(type) {
	case *apiv1.Object_Service:
		return k.Service.GetTenant(), false
	case *apiv1.Object_Tenant:
		return k.Tenant.GetName(), false
	case *apiv1.Object_Policy:
		return k.Policy.GetTenant(), k.Policy.GetTenant() == ""
	}
	return "", false
}

// owns tells whether the identity, of role tenant, may change the object; sees whether it may read it.
func (id identity) owns(o *apiv1.Object) bool {
	tenant, _ := tenantOf(o)
	return id.tenant != "" && tenant == id.tenant
}

// ownsRecord tells the same of a stored object, which may be nil.
func (id identity) ownsRecord(r *record) bool {
	return r != nil && id.tenant != "" && id.owns(r.filled())
}

func (id identity) sees(o *apiv1.Object) bool {
	_, shared := tenantOf(o)
	return shared || id.owns(o)
}

// seesRecord tells whether the identity, of any role, may read a stored object.
func (id identity) seesRecord(rec *record) bool {
	if id.role != pki.RoleTenant {
		return true
	}
	switch o := rec.obj.(type) {
	case *lb.Service:
		return o.Tenant == id.tenant
	case *lb.Policy:
		return o.Tenant == id.tenant || o.Tenant == ""
	case *lb.Tenant:
		return o.Name == id.tenant
	}
	return false
}

// mayPut refuses a tenant what is not its own. old is the stored object of the name, nil when there is none. A name is
// one for all tenants: that it is taken cannot be kept from who wants it, whose it is can.
func (id identity) mayPut(old *record, o lb.Object) error {
	if id.role != pki.RoleTenant {
		return nil
	}
	r, next := refOf(o), convert.ToObject(o)
	at := lb.Ref(r.kind, r.name)
	tenant, shared := tenantOf(next)
	switch {
	case r.kind == lb.KindNode || r.kind == lb.KindNetwork:
		return denied("%s: role tenant may not change it", at)
	case next.GetTenant() != nil && !(id.ownsRecord(old) && proto.Equal(old.filled().GetTenant(), next.GetTenant())):
		// Weight and quotas are what tenants are kept apart by.
		return denied("%s: role tenant may not change it", at)
	case shared || tenant != id.tenant:
		return denied("%s: tenant: %q: must be %q", at, tenant, id.tenant)
	case old != nil && !id.ownsRecord(old):
		return overReach{connect.NewError(connect.CodeAlreadyExists, errors.New(at+": the name is taken, choose another")), whose(old)}
	}
	return nil
}

// mayDelete refuses a tenant what is not its own. What it may not see is not there.
func (id identity) mayDelete(old *record, r ref) error {
	switch {
	case id.role != pki.RoleTenant || old == nil:
		return nil // what is not there is refused by whoever looks for it
	case !id.sees(old.filled()):
		return overReach{notFound{r}, whose(old)}
	case r.kind == lb.KindTenant || !id.ownsRecord(old):
		return denied("%s: role tenant may not delete it", lb.Ref(r.kind, r.name))
	}
	return nil
}

// overReach is a refusal that does not give its cause: of a call for the object of another tenant, or with a bad join token.
type overReach struct {
	says error
	// cause is for the audit log only.
	cause string
}

func (e overReach) Error() string { return e.says.Error() }

func (e overReach) Unwrap() error { return e.says }

// whose says to whom an object belongs that a tenant does not see.
func whose(r *record) string {
	if tenant, _ := tenantOf(r.filled()); tenant == "" {
		return "it is the operator's"
	}
	return "it is another tenant's"
}

// missing is what a tenant hears of an object that it does not see, whether it is there or not.
func (s *scope) missing(r ref) error {
	says := fault(notFound{r})
	if cause := s.hidden(r); cause != "" {
		return overReach{says, cause}
	}
	return says
}

// hidden says whose an object is that is there, and that the tenant does not see; it is empty otherwise.
func (s *scope) hidden(r ref) string {
	s.view.mu.RLock()
	defer s.view.mu.RUnlock()
	if rec := s.view.records[r]; rec != nil && !s.sees(rec.filled()) {
		return whose(rec)
	}
	return ""
}
