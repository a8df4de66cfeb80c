package lab_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/doctor"
	"github.com/shuntlb/shunt/internal/lab"
)

// doctor runs shunt doctor on the server and returns the failed checks, and whether it failed.
func (p *plainServer) doctor(t *testing.T, args ...string) (wrong []doctor.Result, failed bool) {
	t.Helper()
	argv := append([]string{program, "doctor", "--role", "server", "--interface", lab.Uplink, "-o", "json"}, args...)
	if p.alternate != nil {
		argv = append(argv, "--tunnel", "shunt4,shunt6")
	}
	out, err := p.command(argv...)
	exit := &exec.ExitError{}
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
	var all []doctor.Result
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
	for _, r := range all {
		if r.Status != doctor.OK {
			wrong = append(wrong, r)
		}
	}
	return wrong, err != nil
}

// The doctor finds each fault injected into a server that is otherwise set up by the page, and its
// fix works.
func TestDoctorOfPlainServers(t *testing.T) {
	logsOnFailure(t, shared)
	p := readPlainServer(t)
	p.up(t, "ipip")
	vips := fmt.Sprintf("%s,%s", p.vips[0], p.vips[1])
	for _, c := range []struct {
		check  string
		status doctor.Status
		spoil  string
	}{
		{"vip", doctor.Fail, "ip addr del 203.0.113.130/32 dev lo"},
		{"vip", doctor.Fail, "ip addr del 2001:db8:f::130/128 dev lo"},
		{"vip", doctor.Fail, "ip addr del 203.0.113.130/32 dev lo && ip addr add 203.0.113.130/24 dev lo"},
		{"vip", doctor.Fail, "ip addr del 203.0.113.130/32 dev lo && ip addr add 203.0.113.130/32 dev eth0"},
		{"rp_filter", doctor.Fail, "echo 1 >/proc/sys/net/ipv4/conf/shunt4/rp_filter"},
		{"rp_filter", doctor.Fail, "ip addr del 10.20.1.11/32 dev shunt4"},
		{"arp_ignore", doctor.Warn, "echo 0 >/proc/sys/net/ipv4/conf/eth0/arp_ignore"},
		{"arp_announce", doctor.Warn, "echo 0 >/proc/sys/net/ipv4/conf/eth0/arp_announce"},
		{"mss", doctor.Warn, "ip -4 rule del pref 1053"},
		{"mss", doctor.Warn, "ip -6 rule del pref 1053"},
		{"route", doctor.Fail, "ip -4 route replace unreachable default table 1053"},
		{"ip_forward", doctor.Warn, "echo 1 >/proc/sys/net/ipv4/ip_forward"},
		{"ipv6 forwarding", doctor.Warn, "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"},
	} {
		if out, err := p.command("sh", "-c", c.spoil); err != nil {
			t.Fatalf("%s: %v: %s", c.spoil, err, out)
		}
		wrong, failed := p.doctor(t, "--vip", vips)
		if len(wrong) != 1 || wrong[0].Check != c.check || wrong[0].Status != c.status || failed != (c.status == doctor.Fail) {
			t.Errorf("after %s the doctor finds %+v", c.spoil, wrong)
		}
		if len(wrong) == 1 && c.check != "route" && c.check != "mss" {
			cure, _, _ := strings.Cut(wrong[0].Cure, ", unless")
			if out, err := p.command("sh", "-c", cure); err != nil {
				t.Errorf("%s: %v: %s", cure, err, out)
			}
			if wrong, failed := p.doctor(t, "--vip", vips); failed || len(wrong) > 0 {
				t.Errorf("after %s and its cure %s the doctor finds %+v", c.spoil, cure, wrong)
			}
		}
		p.up(t, "ipip")
		if wrong, failed := p.doctor(t, "--vip", vips); failed || len(wrong) > 0 {
			t.Fatalf("after the script the doctor finds %+v", wrong)
		}
	}
	// Neither the devices nor anything else of the script exist.
	p.run(t, "down")
	wrong, _ := p.doctor(t, "--vip", vips)
	for _, check := range []string{"vip", "ipv4 tunnel", "ipv6 tunnel"} {
		if !slices.ContainsFunc(wrong, func(r doctor.Result) bool { return r.Check == check && r.Status == doctor.Fail }) {
			t.Errorf("without all the script does the doctor finds no fault of %s: %+v", check, wrong)
		}
	}
}
