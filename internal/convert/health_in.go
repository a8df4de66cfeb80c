package convert

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// checkMessage has the fields that Health and Check have in common.
type checkMessage interface {
	proto.Message
	GetTcp() *apiv1.TCPCheck
	GetHttp() *apiv1.HTTPCheck
	GetHttps() *apiv1.HTTPSCheck
	GetIcmp() *apiv1.ICMPCheck
	GetGrpc() *apiv1.GRPCCheck
	GetUdp() *apiv1.UDPCheck
	GetDns() *apiv1.DNSCheck
	GetExternal() *apiv1.ExternalCheck
	GetInterval() *durationpb.Duration
	GetTimeout() *durationpb.Duration
	GetFast() *durationpb.Duration
	GetJitter() uint32
	GetRise() uint32
	GetFall() uint32
	GetInitial() string
	GetPort() uint32
	GetAddress() string
	GetThrough() string
	GetEngine() string
}

func (r *reader) health(path string, in *apiv1.Health) lb.Health {
	out := lb.Health{
		Combine: in.GetCombine(), AtLeast: r.byte(path+".atLeast", in.GetAtLeast(), fmt.Sprintf("must be 1 to %d", lb.MaxChecks)), From: in.GetFrom(),
		PanicBelow:     r.byte(path+".panicBelow", in.GetPanicBelow(), "must be 0 to 100"),
		MinimumHealthy: r.uint16(path+".minimumHealthy", in.GetMinimumHealthy(), "must be 0 to the number of backends"),
	}
	if d := in.GetDamping(); d != nil {
		out.Damping = &lb.Damping{
			Flips:  r.uint16(path+".damping.flips", d.GetFlips(), "must be 1 to 1000"),
			Within: r.duration(path+".damping.within", d.GetWithin()), Hold: r.duration(path+".damping.hold", d.GetHold()),
		}
	}
	if p := in.GetPassive(); p != nil {
		out.Passive = &lb.Passive{
			Failures: r.uint16(path+".passive.failures", p.GetFailures(), "must be 1 to 1000"),
			Within:   r.duration(path+".passive.within", p.GetWithin()), Hold: r.duration(path+".passive.hold", p.GetHold()),
		}
	}
	own := r.healthCheck(path, in)
	if len(in.GetChecks()) == 0 {
		out.Checks = []lb.Check{own}
		return out
	}
	if own.Kind != "" {
		r.fault(path+"."+own.KindText(), "", "must be left out beside checks, or be one of them")
	}
	taken := map[string]bool{}
	for i, one := range in.GetChecks() {
		at := fmt.Sprintf("%s.checks[%d]", path, i)
		c := r.healthCheck(at, one)
		if c.Kind == "" {
			r.fault(at, "", "must have a kind: "+strings.Join(lb.CheckKinds, ", "))
		}
		c.Inherit(&own, taken)
		out.Checks = append(out.Checks, c)
	}
	for _, name := range lb.Unused(&own, taken) {
		r.fault(path+"."+name, "", lb.AllowedBeside)
	}
	return out
}

// healthCheck reads one check; unset fields are zero.
func (r *reader) healthCheck(path string, in checkMessage) lb.Check {
	c := lb.Check{
		Interval: r.duration(path+".interval", in.GetInterval()), Timeout: r.duration(path+".timeout", in.GetTimeout()),
		Fast: r.duration(path+".fast", in.GetFast()), Jitter: r.byte(path+".jitter", in.GetJitter(), "must be 1 to 50"),
		Rise: in.GetRise(), Fall: in.GetFall(), Initial: in.GetInitial(), Address: r.optional(path+".address", in.GetAddress()),
		Port:    r.uint16(path+".port", in.GetPort(), "must be 1 to 65535, or 0 for the backend's port"),
		Through: in.GetThrough(), Engine: in.GetEngine(),
	}
	var kinds []string
	kind := func(is bool, name string, read func(path string)) {
		if !is {
			return
		}
		if kinds = append(kinds, name); len(kinds) == 1 {
			read(path + "." + name)
		}
	}
	kind(in.GetTcp() != nil, lb.CheckTCP, func(string) {
		c.Kind, c.Send, c.Expect = lb.CheckTCP, in.GetTcp().GetSend(), in.GetTcp().GetExpect()
		c.SendHex, c.ExpectHex = strings.ToLower(in.GetTcp().GetSendHex()), strings.ToLower(in.GetTcp().GetExpectHex())
	})
	kind(in.GetHttp() != nil, lb.CheckHTTP, func(p string) { r.http(p, in.GetHttp(), &c) })
	kind(in.GetHttps() != nil, lb.KindHTTPS, func(p string) {
		r.http(p, in.GetHttps(), &c)
		tls(&c, in.GetHttps(), in.GetHttps().Verify)
	})
	kind(in.GetIcmp() != nil, lb.CheckICMP, func(string) { c.Kind = lb.CheckICMP })
	kind(in.GetGrpc() != nil, lb.CheckGRPC, func(string) {
		c.Kind, c.Service = lb.CheckGRPC, in.GetGrpc().GetService()
		if t := in.GetGrpc().GetTls(); t != nil {
			tls(&c, t, t.Verify)
		}
	})
	kind(in.GetUdp() != nil, lb.CheckUDP, func(string) {
		c.Kind, c.Send, c.Expect = lb.CheckUDP, in.GetUdp().GetSend(), in.GetUdp().GetExpect()
		c.SendHex, c.ExpectHex = strings.ToLower(in.GetUdp().GetSendHex()), strings.ToLower(in.GetUdp().GetExpectHex())
	})
	kind(in.GetDns() != nil, lb.CheckDNS, func(string) {
		c.Kind, c.Name, c.Type, c.Answer = lb.CheckDNS, in.GetDns().GetName(), in.GetDns().GetType(), in.GetDns().GetAnswer()
	})
	kind(in.GetExternal() != nil, lb.CheckExternal, func(p string) {
		c.Kind, c.Program = lb.CheckExternal, in.GetExternal().GetProgram()
		var err error
		if c.Arguments, err = lb.NewArguments(in.GetExternal().GetArguments()); err != nil {
			r.fault(p+".arguments", "", err.Error())
		}
	})
	if len(kinds) > 1 {
		r.fault(path, strings.Join(kinds, " and "), "must have at most one of "+strings.Join(kinds, " and "))
	}
	return c
}

// http reads the fields that HTTP and HTTPS have in common.
func (r *reader) http(path string, in interface {
	GetPath() string
	GetHost() string
	GetMethod() string
	GetHeaders() []string
	GetStatus() []string
	GetBody() string
	GetVersion() string
}, c *lb.Check) {
	c.Kind, c.Path, c.Host, c.Method, c.Body, c.Version = lb.CheckHTTP, in.GetPath(), in.GetHost(), in.GetMethod(), in.GetBody(), in.GetVersion()
	for i, line := range in.GetHeaders() {
		name, value, ok := strings.Cut(line, ": ")
		allowed := "must be NAME: VALUE"
		if ok {
			allowed = c.Headers.Add(name, value)
		}
		if allowed != "" {
			r.fault(fmt.Sprintf("%s.headers[%d]", path, i), line, allowed)
		}
	}
	var bad int
	var allowed string
	if c.Status, bad, allowed = lb.NewStatusSet(in.GetStatus()); allowed != "" {
		r.fault(fmt.Sprintf("%s.status[%d]", path, bad), in.GetStatus()[bad], allowed)
	}
}

// tls reads the TLS fields of a check; certificates are verified by default.
func tls(c *lb.Check, in interface {
	GetServerName() string
	GetCa() string
}, verify *bool) {
	c.TLS, c.ServerName, c.CA, c.Verify = true, in.GetServerName(), in.GetCa(), verify == nil || *verify
}

// spread copies all fields of a check to the fields with the same names in health.
func spread(one *apiv1.Check, to *apiv1.Health) {
	out := to.ProtoReflect()
	one.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		out.Set(out.Descriptor().Fields().ByName(fd.Name()), v)
		return true
	})
}

// spreadSingle returns the object with a single check as fields of health, as ToObject writes it.
func spreadSingle(o *apiv1.Object) *apiv1.Object {
	single := func(ep *apiv1.Endpoint) bool { return len(ep.GetHealth().GetChecks()) == 1 }
	if !slices.ContainsFunc(o.GetService().GetEndpoints(), single) {
		return o
	}
	o = proto.CloneOf(o)
	for _, ep := range o.GetService().GetEndpoints() {
		if single(ep) {
			h := ep.GetHealth()
			spread(h.GetChecks()[0], h)
			h.Checks = nil
		}
	}
	return o
}

// dropBeside removes fields of health that apply to several checks, because each check has them, as
// ToObject writes them.
func dropBeside(o *apiv1.Service) {
	check := (&apiv1.Check{}).ProtoReflect().Descriptor().Fields()
	for _, ep := range o.GetEndpoints() {
		h := ep.GetHealth()
		if len(h.GetChecks()) == 0 {
			continue
		}
		m := h.ProtoReflect()
		for i := range check.Len() {
			m.Clear(m.Descriptor().Fields().ByName(check.Get(i).Name()))
		}
	}
}
