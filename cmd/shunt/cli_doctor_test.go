package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/doctor"
)

// examine runs doctor on a fake machine.
func examine(machine doctor.Machine, args ...string) (string, error) {
	g := &globals{format: formatTable}
	root := &cobra.Command{Use: "shunt", SilenceErrors: true, SilenceUsage: true}
	g.register(root.PersistentFlags())
	root.AddCommand(newDoctorOf(g, machine))
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append([]string{"doctor"}, args...))
	err := root.Execute()
	return out.String(), err
}

func TestDoctor(t *testing.T) {
	sick := doctor.NewFake()
	sick.Mounted = false
	sick.Links["eth0"] = doctor.Interface{Up: true, MTU: 1500, Driver: "ixgbe"}
	cases := []struct {
		machine *doctor.Fake
		args    []string
		want    string
		failed  bool
	}{
		{doctor.NewFake(), []string{"--role", "mux"}, `ok    kernel           Linux 6.12.1-amd64
ok    capabilities     all that are needed
ok    btf              /sys/kernel/btf/vmlinux
ok    bpffs            mounted at /sys/fs/bpf
ok    jit              net.core.bpf_jit_enable is 1
ok    bpf arrays       memory-mapped arrays can be made
ok    xdp              XDP programs load
ok    ip_forward       net.ipv4.ip_forward is 1
ok    ipv6 forwarding  net.ipv6.conf.all.forwarding is 1
ok    interface        eth0 is up, driver mlx5_core
ok    mtu              1600, 100 more than the network's
ok    rp_filter        0 on eth0
ok    native xdp       supported by the driver
ok    lro              off
`, false},
		{sick, []string{"--role", "host"}, `ok    kernel           Linux 6.12.1-amd64
ok    capabilities     all that are needed
ok    btf              /sys/kernel/btf/vmlinux
fail  bpffs            no bpf filesystem at /sys/fs/bpf
                       cure: mount -t bpf bpf /sys/fs/bpf
ok    jit              net.core.bpf_jit_enable is 1
ok    bpf arrays       memory-mapped arrays can be made
ok    tcx              tc programs load and attach by tcx
ok    ip_forward       net.ipv4.ip_forward is 1
ok    ipv6 forwarding  net.ipv6.conf.all.forwarding is 1
ok    tcp timestamps   net.ipv4.tcp_timestamps is 1
ok    syn cookies      net.ipv4.tcp_syncookies is 1
ok    interface        eth0 is up, driver ixgbe
warn  mtu              1500: inside the tunnel 1460 are left; TCP is clamped to that, larger datagrams are refused, and IPv4 clients that fragment them are not told
                       cure: ip link set dev eth0 mtu 1540, on every device of the underlay
ok    rp_filter        0 on eth0
ok    answers          the IPv4 default route leaves by eth0
ok    firewall         no rule for forwarded packets looks at the state of connections
`, true},
		{doctor.NewFake(), []string{"--role", "host", "--interface", "eth1", "-o", "json"}, `[
  {
    "check": "kernel",
    "status": "ok",
    "found": "Linux 6.12.1-amd64"
  },
  {
    "check": "capabilities",
    "status": "ok",
    "found": "all that are needed"
  },
  {
    "check": "btf",
    "status": "ok",
    "found": "/sys/kernel/btf/vmlinux"
  },
  {
    "check": "bpffs",
    "status": "ok",
    "found": "mounted at /sys/fs/bpf"
  },
  {
    "check": "jit",
    "status": "ok",
    "found": "net.core.bpf_jit_enable is 1"
  },
  {
    "check": "bpf arrays",
    "status": "ok",
    "found": "memory-mapped arrays can be made"
  },
  {
    "check": "tcx",
    "status": "ok",
    "found": "tc programs load and attach by tcx"
  },
  {
    "check": "ip_forward",
    "status": "ok",
    "found": "net.ipv4.ip_forward is 1"
  },
  {
    "check": "ipv6 forwarding",
    "status": "ok",
    "found": "net.ipv6.conf.all.forwarding is 1"
  },
  {
    "check": "tcp timestamps",
    "status": "ok",
    "found": "net.ipv4.tcp_timestamps is 1"
  },
  {
    "check": "syn cookies",
    "status": "ok",
    "found": "net.ipv4.tcp_syncookies is 1"
  },
  {
    "check": "interface",
    "status": "fail",
    "found": "interface eth1: there is none",
    "cure": "name one that there is: shunt doctor --interface NAME"
  },
  {
    "check": "answers",
    "status": "warn",
    "found": "the IPv4 default route leaves by eth0, not by eth1: answers to clients without a route of their own keep the server's address",
    "cure": "ip route replace default via ROUTER dev eth1, or bond the devices: shunt host --interface BOND"
  },
  {
    "check": "firewall",
    "status": "ok",
    "found": "no rule for forwarded packets looks at the state of connections"
  }
]
`, true},
	}
	for _, c := range cases {
		got, err := examine(c.machine, c.args...)
		if got != c.want {
			t.Errorf("%q:\n%s\nwant:\n%s", c.args, got, c.want)
		}
		if errors.Is(err, errSilent) != c.failed {
			t.Errorf("%q: error %v", c.args, err)
		}
	}
}
