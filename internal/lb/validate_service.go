package lb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Limits of a service.
const (
	// MaxBackends is the limit per endpoint: the member ids of 16 bits without 0xffff, which means
	// no member.
	MaxBackends = 65535
	MaxWeight   = 1000
)

// The options of the design (design section 5), built and not built. A commit that builds one moves
// its name.
var (
	builtPaths, unbuiltPaths           = []string{PathDSR, PathNAT}, []string{"bypass"}
	builtAffinities, unbuiltAffinities = []string{AffinityFlow, AffinityHash, AffinityCookie}, []string{}
	builtSchedulers, unbuiltSchedulers = schedulers, []string{}
	builtForms, unbuiltForms           = []string{CookieEVC, CookieCO, CookieSplitR, CookieSplitZ}, []string{}
)

const allowedAffinity = "must be flow, hash or cookie"

func (f *faults) service(s *Service) {
	f.check("tenant", s.Tenant, label(s.Tenant))
	if len(s.VIPs) == 0 {
		f.add("vip", "", "is missing, must have at least one address")
	}
	for i, vip := range s.VIPs {
		f.check(fmt.Sprintf("vip[%d]", i), addrText(vip), unicast(vip))
	}
	unique(f, "vip", s.VIPs)
	f.snat(s)
	if len(s.SNAT) > 0 && s.Translated() {
		f.add("snat", "", "must be left out beside endpoints with path nat, whose servers have no host agent")
	}
	switch {
	case len(s.Endpoints) > 0:
	case len(s.SNAT) == 0:
		f.add("endpoints", "", "is missing, must have at least one endpoint, or servers in snat")
	case len(s.VIPs) > 1:
		f.add("vip[1]", addrText(s.VIPs[1]), "must be left out: a service without endpoints has one VIP, which its servers send from")
	}
	if s.Policy != "" {
		f.check("policy", s.Policy, label(s.Policy))
	}
	f.shared(s.Limits, s.Sources, s.Placement)
	claims := newPortClaims()
	triples := map[Protocol]int{}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		path := fmt.Sprintf("endpoints[%d]", i)
		f.endpoint(path, e)
		f.members(path, e, s.VIPs)
		f.check(path, e.name(), claims.claim(e, i))
		if e.Fragments != Fragments3Tuple {
			continue
		}
		if first, twice := triples[e.Protocol]; twice {
			f.add(path+".fragments", e.Fragments, fmt.Sprintf("must be for one endpoint of protocol %s, and endpoints[%d] has it too", e.Protocol, first))
		} else {
			triples[e.Protocol] = i
		}
	}
}

// endpoint checks one endpoint alone.
func (f *faults) endpoint(path string, e *Endpoint) {
	switch e.Protocol {
	case TCP, UDP, AnyProtocol:
	case 0:
		f.add(path+".protocol", "", "is missing, "+allowedTransport)
	default:
		f.add(path+".protocol", fmt.Sprint(uint8(e.Protocol)), allowedTransport)
	}
	f.check(path+".port", PortsText(e.Port, e.PortEnd), e.wrongPorts())
	f.choice(path+".path", e.Path, unbuiltPaths, builtPaths...)
	f.choice(path+".affinity", e.Affinity, unbuiltAffinities, builtAffinities...)
	f.choice(path+".rewrite", string(e.Rewrite), nil, string(RewriteHost), string(RewriteNone))
	f.scheduling(path, e)
	f.carrying(path, e)
	f.quic(path, e)
	f.remembering(path, e)
	f.timing(path, e)
	f.hostIdle(path+".hostIdle", e)
	f.load(path+".load", e)
	f.unhealthy(path, e)
	f.choice(path+".fragments", e.Fragments, nil, FragmentsDrop, Fragments3Tuple)
	if e.Encap != "" {
		f.choice(path+".encap", e.Encap, nil, encaps...)
	}
	if e.BackupBelow < 1 || e.BackupBelow > 100 {
		f.add(path+".backupBelow", fmt.Sprint(e.BackupBelow), allowedPercent)
	}
	if len(e.Backends) == 0 {
		f.add(path+".backends", "", "is missing, must have at least one backend")
	}
	if len(e.Backends) > MaxBackends {
		f.add(path+".backends", fmt.Sprintf("%d backends", len(e.Backends)), fmt.Sprintf("must be at most %d", MaxBackends))
	}
	f.cookieMembers(path, e)
	for i := range e.Backends {
		f.backend(fmt.Sprintf("%s.backends[%d]", path, i), e, &e.Backends[i])
	}
	f.owners(path, e)
	f.health(path+".health", e)
	f.translated(path, e)
}

// choice checks a field with a few values.
func (f *faults) choice(path, value string, unbuilt []string, built ...string) {
	switch {
	case slices.Contains(built, value):
	case slices.Contains(unbuilt, value):
		f.add(path, value, NotSupported+", "+anyOf(built...))
	default:
		f.add(path, value, anyOf(built...))
	}
}

func (f *faults) backend(path string, e *Endpoint, b *Backend) {
	f.families(path+".dip", b.DIPs)
	switch {
	case e.PortEnd != 0 && b.Port != 0:
		f.add(path+".port", fmt.Sprint(b.Port), "must be left out: packets to "+e.name()+" keep their port")
	case e.PortEnd == 0 && b.Port == 0 && e.Port != 0:
		f.add(path+".port", "0", allowedPort)
	}
	if b.Host.IsValid() || !e.Translated() {
		f.check(path+".host", addrText(b.Host), unicast(b.Host))
	}
	if b.Weight > MaxWeight {
		f.add(path+".weight", fmt.Sprint(b.Weight), allowedWeight)
	}
	if e.Rewrite == RewriteNone && e.PortEnd == 0 && b.Port != e.Port {
		f.add(path+".port", fmt.Sprint(b.Port), fmt.Sprintf("must be the endpoint's port %d, because rewrite is none", e.Port))
	}
}

// members checks the backends of an endpoint against each other and against the VIPs.
func (f *faults) members(path string, e *Endpoint, vips []netip.Addr) {
	keys := make(map[BackendKey]int, len(e.Backends))
	for i := range e.Backends {
		b := &e.Backends[i]
		at := fmt.Sprintf("%s.backends[%d]", path, i)
		if f.hasUnder(at+".dip") || f.has(at+".host") {
			continue
		}
		for j, dip := range b.DIPs {
			key, dipAt := BackendKey{dip, b.Port}, fmt.Sprintf("%s.dip[%d]", at, j)
			if slices.Contains(vips, dip) {
				f.add(dipAt, dip.String(), "must not be a VIP of the service")
			}
			first, twice := keys[key]
			switch {
			case twice && b.Port == 0:
				f.add(dipAt, dip.String(), fmt.Sprintf("must differ from backends[%d]", first))
			case twice:
				f.add(dipAt, netip.AddrPortFrom(dip, b.Port).String(), fmt.Sprintf("must differ from backends[%d] in address or port", first))
			default:
				keys[key] = i
			}
		}
	}
	if e.Encap == EncapIPIP && !f.hasDIP(path) {
		e.sharedOuters(func(s sharedOuter) {
			f.add(fmt.Sprintf("%s.backends[%d].dip[%d]", path, s.backend, s.dip), s.addr.String(), s.wrong())
		})
	}
	if len(e.Backends) == 0 || f.hasDIP(path) {
		return
	}
	for i, vip := range vips {
		if !f.has(fmt.Sprintf("vip[%d]", i)) && !e.serves(vip) {
			f.add(path+".backends", "", fmt.Sprintf("must have a backend with an %s address for the VIP %s", family(vip), vip))
		}
	}
}

// rooted reports whether s begins with / and has only printable ASCII without spaces, at most max
// bytes.
func rooted(s string, max int) bool {
	return strings.HasPrefix(s, "/") && len(s) <= max && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// hasUnder reports whether path or an item of it already has a fault.
func (f *faults) hasUnder(path string) bool {
	return slices.ContainsFunc(f.found, func(v Violation) bool {
		return v.Field == path || strings.HasPrefix(v.Field, path+"[")
	})
}

// hasDIP reports whether a DIP of the endpoint already has a fault.
func (f *faults) hasDIP(endpoint string) bool {
	return slices.ContainsFunc(f.found, func(v Violation) bool {
		return strings.HasPrefix(v.Field, endpoint+".backends[") && strings.Contains(v.Field, ".dip")
	})
}

// serves reports whether the endpoint has a backend of the VIP's family.
func (e *Endpoint) serves(vip netip.Addr) bool {
	return slices.ContainsFunc(e.Backends, func(b Backend) bool {
		_, ok := b.DIP(vip)
		return ok
	})
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
