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

// tenantOf returns the tenant that owns an object. shared is true for an object that no tenant owns
// and every tenant may use: a Policy without a tenant. Nodes and Networks belong to the operator.
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

// owns reports whether the identity, of role tenant, may change the object. sees reports whether it
// may read it.
func (id identity) owns(o *apiv1.Object) bool {
	tenant, _ := tenantOf(o)
	return id.tenant != "" && tenant == id.tenant
}

// ownsRecord is owns for a stored object, which may be nil.
func (id identity) ownsRecord(r *record) bool {
	return r != nil && id.tenant != "" && id.owns(r.filled())
}

func (id identity) sees(o *apiv1.Object) bool {
	_, shared := tenantOf(o)
	return shared || id.owns(o)
}

// seesRecord reports whether the identity, of any role, may read a stored object.
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

// mayPut returns an error if a tenant puts an object that it does not own. old is the stored object
// of that name, or nil. Names are shared by all tenants: the error shows that a name is taken, but
// not by which tenant.
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
		// Weight and quotas isolate tenants from each other.
		return denied("%s: role tenant may not change it", at)
	case shared || tenant != id.tenant:
		return denied("%s: tenant: %q: must be %q", at, tenant, id.tenant)
	case old != nil && !id.ownsRecord(old):
		return overReach{connect.NewError(connect.CodeAlreadyExists, errors.New(at+": the name is taken, choose another")), whose(old)}
	}
	return nil
}

// mayDelete returns an error if a tenant deletes an object that it does not own. An object that the
// tenant may not see is reported as not found.
func (id identity) mayDelete(old *record, r ref) error {
	switch {
	case id.role != pki.RoleTenant || old == nil:
		return nil // the caller reports a missing object
	case !id.sees(old.filled()):
		return overReach{notFound{r}, whose(old)}
	case r.kind == lb.KindTenant || !id.ownsRecord(old):
		return denied("%s: role tenant may not delete it", lb.Ref(r.kind, r.name))
	}
	return nil
}

// overReach is an error that hides its cause from the caller: a request for another tenant's
// object, or a bad join token.
type overReach struct {
	says error
	// cause is for the audit log only.
	cause string
}

func (e overReach) Error() string { return e.says.Error() }

func (e overReach) Unwrap() error { return e.says }

// whose returns the owner of an object that the tenant may not see, as text for the audit log.
func whose(r *record) string {
	if tenant, _ := tenantOf(r.filled()); tenant == "" {
		return "it is the operator's"
	}
	return "it is another tenant's"
}

// missing returns the error for an object that the tenant may not see. It is the same whether or
// not the object exists.
func (s *scope) missing(r ref) error {
	says := fault(notFound{r})
	if cause := s.hidden(r); cause != "" {
		return overReach{says, cause}
	}
	return says
}

// hidden returns the owner, as text, of an existing object that the tenant may not see, or "".
func (s *scope) hidden(r ref) string {
	s.view.mu.RLock()
	defer s.view.mu.RUnlock()
	if rec := s.view.records[r]; rec != nil && !s.sees(rec.filled()) {
		return whose(rec)
	}
	return ""
}
