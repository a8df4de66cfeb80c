package lb

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"
)

// Cookie configures how packets of an endpoint's TCP connections carry the member (affinity
// cookie).
type Cookie struct {
	// Form is one of CookieEVC, CookieSplitR, CookieSplitZ, CookieCO; empty for endpoints without
	// cookies in TCP.
	Form string
}

// Forms of cookies in TCP timestamps (RFC 7323 section 3). Hosts write EVC, which survives any
// silence. The mux writes the split forms, which need path nat: R restores the server's timestamp
// in echoes, Z sets the echo to the server to 0. CO is the server's own clock, shifted when the
// connection begins.
const (
	CookieEVC    = "evc"
	CookieSplitR = "split-r"
	CookieSplitZ = "split-z"
	CookieCO     = "co"
)

// The number of member ids of an endpoint with affinity cookie, including those in quarantine.
const (
	// MaxCIDMembers is the number with connection ids, which have 12 bits for the member.
	MaxCIDMembers = 1<<12 - 1
	// MaxCookieMembers is the number with form EVC, MaxShortCookieMembers with the other forms: one
	// less than the primes that are the moduli of cookies.
	MaxCookieMembers      = 32748
	MaxShortCookieMembers = 2038
)

// Cookies reports whether the endpoint's packets carry their member: in TCP timestamps or in QUIC
// connection ids.
func (e *Endpoint) Cookies() bool { return e.Affinity == AffinityCookie }

// StampsTCP reports whether TCP timestamps carry the member.
func (e *Endpoint) StampsTCP() bool { return e.Cookies() && e.Protocol == TCP }

// Stamped reports whether hosts write the member into packets of servers, and read it from the
// replies.
func (e *Endpoint) Stamped() bool { return e.StampsTCP() && e.Cookie.Form == CookieEVC }

// MaxMembers returns the number of member ids of the endpoint.
func (e *Endpoint) MaxMembers() int {
	switch {
	case e.StampsTCP() && e.Cookie.Form != CookieEVC:
		return MaxShortCookieMembers
	case e.StampsTCP():
		return MaxCookieMembers
	case e.Cookies():
		return MaxCIDMembers
	}
	return MaxBackends
}

func (d *decoder) cookie(path string, n ast.Node) Cookie {
	var c Cookie
	d.mapping(path, n, field{"form", func(p string, n ast.Node) { c.Form = d.given(p, n, anyOf(builtForms...)) }})
	return c
}

// carrying checks the requirements of affinity cookie, and the options that only it has.
func (f *faults) carrying(path string, e *Endpoint) {
	if !e.Cookies() {
		if e.Cookie != (Cookie{}) {
			f.add(path+".cookie", e.Cookie.Form, "must be left out with affinity "+e.Affinity)
		}
		if e.Track {
			f.add(path+".track", "true", "must be false with affinity "+e.Affinity+": only cookie endpoints have records of connections")
		}
		return
	}
	switch {
	case e.Protocol == UDP && e.QUIC == nil:
		f.add(path+".affinity", e.Affinity, "must be flow or hash with protocol udp: only tcp and quic carry cookies")
	case e.Protocol == AnyProtocol:
		f.add(path+".affinity", e.Affinity, "must be flow or hash with protocol any: only tcp and quic carry cookies")
	}
	if e.Source != nil {
		f.add(path+".source", "", "must be left out with affinity cookie, which keeps connections and not clients at their backends")
	}
	if e.Fragments == Fragments3Tuple {
		f.add(path+".fragments", e.Fragments, "must be drop with affinity cookie: fragments but the first carry none")
	}
	if e.Rewrite == RewriteNone && e.Protocol == TCP && e.Cookie.Form != CookieCO {
		f.add(path+".rewrite", string(e.Rewrite), "must be host with affinity cookie in tcp, but for cookie.form co: hosts stamp what they rewrite")
	}
	if e.Track && e.Path == PathNAT {
		f.add(path+".track", "true", "must be false with path nat, which has sessions of its own")
	}
	f.form(path, e)
}

// unhealthy checks the handling of flows of unhealthy backends: only tracked flows can stay.
func (f *faults) unhealthy(path string, e *Endpoint) {
	if e.Unhealthy == "" {
		return
	}
	f.choice(path+".unhealthy", e.Unhealthy, nil, UnhealthyKeep, UnhealthyMove)
	if e.Unhealthy == UnhealthyKeep && !e.KeepsFlows() {
		f.add(path+".unhealthy", e.Unhealthy, "must be move or left out with affinity hash or onePacket: no flow is known to stay")
	}
}

// form checks the form of the cookie.
func (f *faults) form(path string, e *Endpoint) {
	at := path + ".cookie.form"
	if e.Protocol != TCP {
		if e.Cookie != (Cookie{}) {
			f.add(path+".cookie", e.Cookie.Form, "must be left out with protocol "+e.ProtocolName()+": only tcp has forms of cookies")
		}
		return
	}
	f.choice(at, e.Cookie.Form, unbuiltForms, builtForms...)
	if f.has(at) || f.has(path+".path") {
		return
	}
	switch split := e.Cookie.Form == CookieSplitR || e.Cookie.Form == CookieSplitZ; {
	case split && e.Path != PathNAT:
		f.add(at, e.Cookie.Form, "must be evc or co with path "+e.Path+": the split forms need path nat")
	case !split && e.Path == PathNAT:
		f.add(at, e.Cookie.Form, "must be split-r or split-z with path nat")
	}
	if e.Cookie.Form != CookieCO {
		return
	}
	if e.Rewrite == RewriteHost {
		f.add(path+".rewrite", string(e.Rewrite), "must be none with cookie.form co: the server's own kernel ends the connections to the VIP")
	}
	if e.PortEnd != 0 {
		f.add(path+".port", PortsText(e.Port, e.PortEnd), "must be a single port with cookie.form co, whose handshakes the host makes for who listens there")
	}
}

// cookieMembers checks the number of backends that a cookie can distinguish.
func (f *faults) cookieMembers(path string, e *Endpoint) {
	if n, most := len(e.Backends), e.MaxMembers(); e.Cookies() && n > most && n <= MaxBackends {
		with := "affinity cookie"
		if most == MaxShortCookieMembers {
			with = "cookie.form " + e.Cookie.Form
		}
		f.add(path+".backends", fmt.Sprintf("%d backends", n), fmt.Sprintf("must be at most %d with %s", most, with))
	}
}
