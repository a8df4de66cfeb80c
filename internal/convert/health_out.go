package convert

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// toHealth writes one check as fields of health, several as a list.
func toHealth(h lb.Health) *apiv1.Health {
	out := &apiv1.Health{
		From: h.From, Combine: h.Combine, AtLeast: uint32(h.AtLeast), PanicBelow: uint32(h.PanicBelow), MinimumHealthy: uint32(h.MinimumHealthy),
	}
	if d := h.Damping; d != nil {
		out.Damping = &apiv1.Damping{Flips: uint32(d.Flips), Within: duration(d.Within), Hold: duration(d.Hold)}
	}
	if p := h.Passive; p != nil {
		out.Passive = &apiv1.Passive{Failures: uint32(p.Failures), Within: duration(p.Within), Hold: duration(p.Hold)}
	}
	if len(h.Checks) == 1 {
		spread(toCheck(&h.Checks[0]), out)
		return out
	}
	for i := range h.Checks {
		out.Checks = append(out.Checks, toCheck(&h.Checks[i]))
	}
	return out
}

func toCheck(c *lb.Check) *apiv1.Check {
	out := &apiv1.Check{
		Interval: duration(c.Interval), Timeout: duration(c.Timeout), Fast: duration(c.Fast), Jitter: uint32(c.Jitter), Rise: c.Rise, Fall: c.Fall,
		Initial: c.Initial, Port: uint32(c.Port), Address: text(c.Address), Through: c.Through, Engine: c.Engine,
	}
	verify := c.Verify
	switch c.KindText() {
	case lb.CheckTCP:
		out.Tcp = &apiv1.TCPCheck{Send: c.Send, Expect: c.Expect, SendHex: c.SendHex, ExpectHex: c.ExpectHex}
	case lb.CheckHTTP:
		out.Http = &apiv1.HTTPCheck{
			Path: c.Path, Host: c.Host, Method: c.Method, Headers: c.Headers.List(), Status: c.Status.List(), Body: c.Body, Version: c.Version,
		}
	case lb.KindHTTPS:
		out.Https = &apiv1.HTTPSCheck{
			Path: c.Path, Host: c.Host, Method: c.Method, Headers: c.Headers.List(), Status: c.Status.List(), Body: c.Body, Version: c.Version,
			ServerName: c.ServerName, Ca: c.CA, Verify: &verify,
		}
	case lb.CheckICMP:
		out.Icmp = &apiv1.ICMPCheck{}
	case lb.CheckGRPC:
		out.Grpc = &apiv1.GRPCCheck{Service: c.Service}
		if c.TLS {
			out.Grpc.Tls = &apiv1.CheckTLS{ServerName: c.ServerName, Ca: c.CA, Verify: &verify}
		}
	case lb.CheckUDP:
		out.Udp = &apiv1.UDPCheck{Send: c.Send, Expect: c.Expect, SendHex: c.SendHex, ExpectHex: c.ExpectHex}
	case lb.CheckDNS:
		out.Dns = &apiv1.DNSCheck{Name: c.Name, Type: c.Type, Answer: c.Answer}
	case lb.CheckExternal:
		out.External = &apiv1.ExternalCheck{Program: c.Program, Arguments: c.Arguments.List()}
	}
	return out
}

// checkText returns one check of several, as in files.
func checkText(m protoreflect.Message) string {
	r := &reader{}
	c := r.healthCheck("check", m.Interface().(*apiv1.Check))
	c.SetDefaults()
	return c.Text()
}
