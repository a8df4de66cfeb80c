package lb

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Limits of a service.
const (
	// MaxBackends per endpoint: the members that 12 id bits tell apart (design section 9.1).
	MaxBackends = 4095
	MaxWeight   = 1000

	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
	minTimeout  = time.Millisecond
	maxCount    = 100
	maxPath     = 1024

	allowedCount = "must be 1 to 100"
)

// What the design has and this version has not (design section 5).
var (
	unbuiltPaths      = []string{"nat", "bypass"}
	unbuiltAffinities = []string{"flow", "cookie"}
	unbuiltSchedulers = []string{"random", "round-robin", "weighted-round-robin", "adaptive", "least-connections", "p2c"}
)

func (f *faults) service(s *Service) {
	f.check("tenant", s.Tenant, label(s.Tenant))
	if len(s.VIPs) == 0 {
		f.add("vip", "", "is missing, must have at least one address")
	}
	for i, vip := range s.VIPs {
		f.check(fmt.Sprintf("vip[%d]", i), addrText(vip), unicast(vip))
	}
	unique(f, "vip", s.VIPs)
	if len(s.SNAT) > 0 {
		f.add("snat", "", NotSupported)
	}
	if len(s.Endpoints) == 0 {
		f.add("endpoints", "", "is missing, must have at least one endpoint")
	}
	type key struct {
		protocol Protocol
		port     uint16
	}
	seen := map[key]int{}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		path := fmt.Sprintf("endpoints[%d]", i)
		f.endpoint(path, e)
		f.members(path, e, s.VIPs)
		k := key{e.Protocol, e.Port}
		if first, twice := seen[k]; twice {
			f.add(path, fmt.Sprintf("%s port %d", e.Protocol, e.Port), fmt.Sprintf("must differ from endpoints[%d] in protocol or port", first))
		} else {
			seen[k] = i
		}
	}
}

func (f *faults) endpoint(path string, e *Endpoint) {
	switch {
	case e.Protocol == 0:
		f.add(path+".protocol", "", "is missing, must be tcp or udp")
	case e.Protocol != TCP && e.Protocol != UDP:
		f.add(path+".protocol", fmt.Sprint(uint8(e.Protocol)), "must be tcp or udp")
	}
	if e.Port == 0 {
		f.add(path+".port", "0", allowedPort)
	}
	f.choice(path+".path", e.Path, PathDSR, unbuiltPaths)
	f.choice(path+".affinity", e.Affinity, AffinityHash, unbuiltAffinities)
	f.choice(path+".scheduler", e.Scheduler, SchedulerMaglev, unbuiltSchedulers)
	if e.Rewrite != RewriteHost && e.Rewrite != RewriteNone {
		f.add(path+".rewrite", string(e.Rewrite), anyOf(string(RewriteHost), string(RewriteNone)))
	}
	if len(e.Backends) == 0 {
		f.add(path+".backends", "", "is missing, must have at least one backend")
	}
	if len(e.Backends) > MaxBackends {
		f.add(path+".backends", fmt.Sprintf("%d backends", len(e.Backends)), fmt.Sprintf("must be at most %d", MaxBackends))
	}
	for i := range e.Backends {
		f.backend(fmt.Sprintf("%s.backends[%d]", path, i), e, &e.Backends[i])
	}
	f.health(path+".health", &e.Health)
}

// choice checks a field that has one built value so far.
func (f *faults) choice(path, value, built string, unbuilt []string) {
	switch {
	case value == built:
	case slices.Contains(unbuilt, value):
		f.add(path, value, NotSupported+", must be "+built)
	default:
		f.add(path, value, "must be "+built)
	}
}

func (f *faults) backend(path string, e *Endpoint, b *Backend) {
	f.families(path+".dip", b.DIPs)
	if b.Port == 0 && e.Port != 0 {
		f.add(path+".port", "0", allowedPort)
	}
	f.check(path+".host", addrText(b.Host), unicast(b.Host))
	if b.Weight > MaxWeight {
		f.add(path+".weight", fmt.Sprint(b.Weight), allowedWeight)
	}
	if e.Rewrite == RewriteNone && b.Port != e.Port {
		f.add(path+".port", fmt.Sprint(b.Port), fmt.Sprintf("must be the endpoint's port %d, because rewrite is none", e.Port))
	}
}

// members checks what the backends of an endpoint are to each other and to the VIPs.
func (f *faults) members(path string, e *Endpoint, vips []netip.Addr) {
	keys, outers := map[BackendKey]int{}, map[netip.AddrPort]int{}
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
			if twice {
				f.add(dipAt, netip.AddrPortFrom(dip, b.Port).String(), fmt.Sprintf("must differ from backends[%d] in address or port", first))
				continue
			}
			keys[key] = i
			outer := Outer(dip, b.Host)
			if first, twice := outers[outerKey(dip, outer)]; twice {
				f.add(dipAt, dip.String(), fmt.Sprintf("must not share its outer destination %s with backends[%d]: that needs GUE, %s", outer, first, NotSupported))
				continue
			}
			outers[outerKey(dip, outer)] = i
		}
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

func (f *faults) health(path string, h *Health) {
	switch h.Kind {
	case CheckHTTP:
		if !rooted(h.Path, maxPath) {
			f.add(path+".http.path", h.Path, "must begin with / and hold printable ASCII without spaces, at most 1024 bytes")
		}
		if h.Host != "" && !hostForm.MatchString(h.Host) {
			f.add(path+".http.host", h.Host, "must be a host name or an address, with or without :port, at most 253 bytes")
		}
	case CheckTCP:
		if h.Path != "" || h.Host != "" {
			f.add(path+".tcp", "", "must have no path and no host")
		}
	default:
		f.add(path, h.Kind, anyOf(CheckTCP, CheckHTTP))
	}
	if h.Interval < minInterval || h.Interval > maxInterval {
		f.add(path+".interval", durationText(h.Interval), "must be 100ms to 1h")
	} else if h.Timeout < minTimeout || h.Timeout > h.Interval {
		f.add(path+".timeout", durationText(h.Timeout), "must be 1ms to the interval, "+durationText(h.Interval))
	}
	if h.Rise < 1 || h.Rise > maxCount {
		f.add(path+".rise", fmt.Sprint(h.Rise), allowedCount)
	}
	if h.Fall < 1 || h.Fall > maxCount {
		f.add(path+".fall", fmt.Sprint(h.Fall), allowedCount)
	}
}

var hostForm = regexp.MustCompile(`^[A-Za-z0-9_.:\[\]-]{1,253}$`)

// rooted tells whether s begins with / and holds printable ASCII without spaces, at most max bytes.
func rooted(s string, max int) bool {
	return strings.HasPrefix(s, "/") && len(s) <= max && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// hasUnder tells whether path or an item of it has a fault already.
func (f *faults) hasUnder(path string) bool {
	return slices.ContainsFunc(f.found, func(v Violation) bool {
		return v.Field == path || strings.HasPrefix(v.Field, path+"[")
	})
}

// hasDIP tells whether a DIP of the endpoint has a fault already.
func (f *faults) hasDIP(endpoint string) bool {
	return slices.ContainsFunc(f.found, func(v Violation) bool {
		return strings.HasPrefix(v.Field, endpoint+".backends[") && strings.Contains(v.Field, ".dip")
	})
}

// serves tells whether the endpoint has a backend of the VIP's family.
func (e *Endpoint) serves(vip netip.Addr) bool {
	return slices.ContainsFunc(e.Backends, func(b Backend) bool {
		_, ok := b.DIP(vip)
		return ok
	})
}

// outerKey keeps the endpoints of IPv4 and IPv6 VIPs apart: their members never meet.
func outerKey(dip, outer netip.Addr) netip.AddrPort {
	if dip.Is4() {
		return netip.AddrPortFrom(outer, 4)
	}
	return netip.AddrPortFrom(outer, 6)
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
