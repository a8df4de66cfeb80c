package gobgp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ownNamespace runs the calling test again as a process in its own network namespace and returns
// true there, because GoBGP opens sockets from its own goroutines. The process, its speakers and
// its router have priority over others, as in production, because routers withdraw the routes of a
// speaker that is silent for the detection time of BFD, 5 seconds.
func ownNamespace(t *testing.T) bool {
	t.Helper()
	const mark = "SHUNT_TEST_OWN_NAMESPACE"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nice", "-n", "-20", self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("in its own namespace: %v", err)
	}
	return false
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// router is an FRR in a namespace, linked to this one: 10.10.0.1 there, 10.10.0.11 here.
type router struct {
	t         *testing.T
	dir       string
	namespace string
}

const routerConfig = `
hostname router
router bgp 65000
 bgp router-id 10.10.0.1
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 neighbor 10.10.0.11 remote-as 65010
 neighbor 10.10.0.11 password %s
 neighbor 10.10.0.11 timers connect 1
 neighbor 10.10.0.11 bfd 10 100 100
 address-family ipv4 unicast
  neighbor 10.10.0.11 activate
  network 192.0.2.0/24
 exit-address-family
 address-family ipv6 unicast
  neighbor 10.10.0.11 activate
 exit-address-family
`

func newRouter(t *testing.T, password string) *router {
	t.Helper()
	name := fmt.Sprintf("gobgp-%d", os.Getpid())
	dir, err := os.MkdirTemp("", "shunt-frr-")
	if err != nil {
		t.Fatal(err)
	}
	r := &router{t: t, dir: dir, namespace: name}
	t.Cleanup(func() { os.RemoveAll(dir) })
	command(t, "ip", "netns", "add", name)
	t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
	for _, line := range []string{
		"link add eth0 type veth peer name eth0 netns " + name,
		"addr add 10.10.0.11/24 dev eth0", "addr add 2001:db8:10::11/64 dev eth0 nodad",
		"link set eth0 up", "link set lo up",
		"-n " + name + " addr add 10.10.0.1/24 dev eth0",
		"-n " + name + " addr add 2001:db8:10::1/64 dev eth0 nodad",
		"-n " + name + " link set eth0 up", "-n " + name + " link set lo up",
	} {
		command(t, "ip", strings.Fields(line)...)
	}
	account, err := user.Lookup("frr")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	config := filepath.Join(dir, "bgpd.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, routerConfig, password), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, config} {
		if err := os.Chown(p, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	r.daemon(name, "zebra", "-s", "90000000")
	var control []string // FRR 10 has no control socket and refuses the option
	if help, err := exec.Command("/usr/lib/frr/bfdd", "--help").CombinedOutput(); err == nil && strings.Contains(string(help), "--bfdctl") {
		control = []string{"--bfdctl", filepath.Join(dir, "bfdd.sock")}
	}
	r.daemon(name, "bfdd", control...)
	r.daemon(name, "bgpd", "-f", config)
	return r
}

func (r *router) daemon(namespace, name string, args ...string) {
	r.t.Helper()
	pidFile := filepath.Join(r.dir, name+".pid")
	args = append([]string{
		"--net=/run/netns/" + namespace, "/usr/lib/frr/" + name, "-d", "-u", "frr", "-g", "frr", "-i", pidFile,
		"-z", filepath.Join(r.dir, "zserv.sock"), "--vty_socket", r.dir, "-P", "0", "--log", "file:" + filepath.Join(r.dir, name+".log"),
	}, args...)
	command(r.t, "nsenter", args...)
	r.t.Cleanup(func() {
		if data, err := os.ReadFile(pidFile); err == nil {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
}

// ask runs a command of the router's shell.
func (r *router) ask(line string) string {
	out, _ := exec.Command("vtysh", "--vty_socket", r.dir, "--config_dir", r.dir, "-c", line).Output()
	return string(out)
}

// route is the router's entry for a prefix.
type route struct {
	NextHop   string
	Graceful  bool
	Community string
	Path      string // AS_PATH
	LocalPref bool   // the peer sent LOCAL_PREF
}

func (r *router) route(prefix string) *route {
	p := netip.MustParsePrefix(prefix)
	family := "ipv4"
	if p.Addr().Is6() {
		family = "ipv6"
	}
	var answer struct {
		Paths []struct {
			AsPath    struct{ String string }
			LocPrf    *uint32
			Community struct{ String string }
			NextHops  []struct{ IP string }
		}
	}
	text := r.ask(fmt.Sprintf("show bgp %s unicast %s json", family, prefix))
	if json.Unmarshal([]byte(text), &answer) != nil || len(answer.Paths) == 0 {
		return nil
	}
	out := &route{Community: answer.Paths[0].Community.String, Path: answer.Paths[0].AsPath.String, LocalPref: answer.Paths[0].LocPrf != nil && *answer.Paths[0].LocPrf != defaultLocalPref}
	out.Graceful = strings.Contains(out.Community, "graceful-shutdown")
	if hops := answer.Paths[0].NextHops; len(hops) > 0 {
		out.NextHop = hops[0].IP
	}
	return out
}

// connections returns FRR's count of sessions: "Connections established 1; dropped 0".
func (r *router) connections() string {
	for line := range strings.Lines(r.ask("show bgp neighbors 10.10.0.11")) {
		if strings.Contains(line, "Connections established") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// until calls ok repeatedly, until it returns true.
func (r *router) until(what string, ok func() bool) time.Duration {
	r.t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for !ok() {
		select {
		case <-pace.C:
		case <-ctx.Done():
			r.t.Fatalf("%s: did not happen\n%s\n%s", what, r.ask("show bgp summary"), r.ask("show bfd peers"))
		}
	}
	took := time.Since(begin)
	r.t.Logf("%s: %v", what, took.Round(time.Millisecond))
	return took
}

// configure passes configuration lines to the router's shell.
func (r *router) configure(lines ...string) {
	r.t.Helper()
	args := []string{"--vty_socket", r.dir, "--config_dir", r.dir, "-c", "configure terminal"}
	for _, line := range lines {
		args = append(args, "-c", line)
	}
	command(r.t, "vtysh", args...)
}
