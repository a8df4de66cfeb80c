package lab_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// plainServer is a server of the lab that is set up by docs/ops/plain-servers.md.
type plainServer struct {
	vm                         string
	vips                       []netip.Addr
	service                    string // the page's object
	config, script, guard, mss string // the page's blocks
	dir                        string // of the script and its configuration
	alternate                  *standIn
}

// blocks returns the fenced blocks of a language in a page, in order.
func blocks(page, language string) []string {
	var out []string
	for i, block := range strings.Split("\n"+page, "\n```") {
		if of, text, found := strings.Cut(block, "\n"); i%2 == 1 && found && of == language {
			out = append(out, text+"\n")
		}
	}
	return out
}

// readPlainServer reads the page.
func readPlainServer(t *testing.T) *plainServer {
	t.Helper()
	text, err := os.ReadFile("../../docs/ops/plain-servers.md")
	if err != nil {
		t.Fatal(err)
	}
	sh, objects, tables := blocks(string(text), "sh"), blocks(string(text), "yaml"), blocks(string(text), "nft")
	if len(sh) != 3 || len(objects) != 1 || len(tables) != 2 {
		t.Fatalf("the page has %d blocks of sh, %d of yaml, %d of nft", len(sh), len(objects), len(tables))
	}
	v4, v6 := lab.VIPAddresses(130)
	p := &plainServer{
		vm: "host1-vm1", vips: []netip.Addr{v4, v6}, service: objects[0], config: sh[0], script: sh[1], guard: tables[0], mss: tables[1], dir: t.TempDir(),
	}
	if commands := "plain-server up\nshunt doctor --role server --interface eth0\n"; sh[2] != commands {
		t.Fatalf("the page's commands are %q, this test runs %q", sh[2], commands)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "plain-server"), []byte(p.script), 0o755); err != nil {
		t.Fatal(err)
	}
	if missing := tunnelsMissing(t); missing != nil {
		t.Logf("this kernel has no tunnel devices, programs stand in for shunt4 and shunt6: %v", missing)
		p.alternate = newStandIn(t, p.vm)
	}
	t.Cleanup(func() { p.run(t, "down") })
	p.wholePackets(t)
	// As strict as distributions are.
	p.set(t, "net/ipv4/ip_forward", "0")
	p.set(t, "net/ipv6/conf/all/forwarding", "0")
	p.set(t, "net/ipv4/conf/all/rp_filter", "1")
	t.Cleanup(func() { p.set(t, "net/ipv4/conf/all/rp_filter", "0") })
	return p
}

// wholePackets makes the server's link carry packets as on a wire: not several in one, and with
// checksums.
func (p *plainServer) wholePackets(t *testing.T) {
	t.Helper()
	host, err := netdev.OpenNamespace(shared.Topology.Name + "-host1")
	if err != nil {
		t.Fatal(err)
	}
	set := func(on bool) {
		if err := host.SetOffload("vm1", netdev.OffloadTxChecksum, on); err != nil {
			t.Error(err)
		}
	}
	set(false)
	t.Cleanup(func() {
		set(true)
		host.Close()
	})
}

// run runs the page's script on the server.
func (p *plainServer) run(t *testing.T, what string) {
	t.Helper()
	if p.alternate != nil {
		p.alternate.detach()
	}
	if out, err := p.command(filepath.Join(p.dir, "plain-server"), what); err != nil {
		t.Fatalf("plain-server %s: %v: %s", what, err, out)
	}
	if p.alternate == nil || what != "up" {
		return
	}
	vm, err := shared.Topology.Find(p.vm)
	if err != nil {
		t.Fatal(err)
	}
	gue := strings.Contains(p.config, "ENCAP=gue")
	p.alternate.attach(t, "shunt4", vm.Addresses().V4.Addr(), gue)
	p.alternate.attach(t, "shunt6", vm.Addresses().V6.Addr(), gue)
}

// up writes the configuration and sets the server up.
func (p *plainServer) up(t *testing.T, encap string) {
	t.Helper()
	line := "ENCAP=ipip "
	if !strings.Contains(p.config, line) && !strings.Contains(p.config, "ENCAP=gue ") {
		t.Fatalf("the page's configuration has no %q", line)
	}
	p.config = strings.ReplaceAll(strings.ReplaceAll(p.config, line, "ENCAP="+encap+" "), "ENCAP=gue ", "ENCAP="+encap+" ")
	if err := os.WriteFile(filepath.Join(p.dir, "config"), []byte(p.config), 0o644); err != nil {
		t.Fatal(err)
	}
	p.run(t, "up")
}

// command runs a command on the server.
func (p *plainServer) command(argv ...string) ([]byte, error) {
	path := os.Getenv("PATH")
	if p.alternate != nil {
		path = p.alternate.dir + ":" + path
	}
	var out []byte
	err := netdev.In(shared.Topology.Name+"-"+p.vm, func() (err error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "PATH="+path, "PLAIN_SERVER="+filepath.Join(p.dir, "config"))
		out, err = cmd.CombinedOutput()
		return err
	})
	return out, err
}

// A server without a host agent, set up exactly by the page: it serves VIPs of both families over
// TCP and UDP, full segments arrive unfragmented, and the doctor finds no fault.
func TestPlainServer(t *testing.T) {
	logsOnFailure(t, shared)
	p := readPlainServer(t)
	if wrong, failed := p.doctor(t, "--vip", fmt.Sprintf("%s,%s", p.vips[0], p.vips[1])); !failed {
		t.Errorf("before, the doctor finds but this: %+v", wrong)
	}
	for i, encap := range []string{"gue", "ipip"} {
		p.up(t, encap)
		if encap == "ipip" || p.alternate == nil {
			args := map[string][]string{"ipip": nil, "gue": {"--encap", "gue"}}
			if wrong, failed := p.doctor(t, args[encap]...); failed || len(wrong) > 0 {
				t.Errorf("%s: the doctor finds %+v", encap, wrong)
			}
		}
		object := p.service
		if encap == "gue" {
			object = strings.Replace(object, "  rewrite: none\n", "  rewrite: none\n  encap: gue\n", 1)
		}
		s := service{name: "plain", number: 130, protocol: "any", backends: []string{p.vm}, text: object}
		s.apply(t)
		if i == 0 {
			s.awaitHops(t, shared.Topology.Muxes)
		}
		s.awaitAlive(t, 1)
		for _, vip := range p.vips {
			p.serves(t, vip)
		}
		p.fitsTunnel(t, encap)
	}
	p.asksInItsOwnName(t)
	p.set(t, "net/ipv4/conf/shunt4/rp_filter", "0")
	if wrong, failed := p.doctor(t); !failed || len(wrong) != 1 || wrong[0].Check != "rp_filter" {
		t.Errorf("with a strict filter the doctor finds %+v", wrong)
	}
	p.up(t, "ipip")
	runIP(t, shared.Topology.Name+"-"+p.vm, "-4", "addr", "flush", "dev", "shunt4")
	if wrong, failed := p.doctor(t); !failed || len(wrong) != 1 || wrong[0].Check != "rp_filter" {
		t.Errorf("without an address on the device the doctor finds %+v", wrong)
	}
}

// set changes a setting of the server's kernel.
func (p *plainServer) set(t *testing.T, key, value string) {
	t.Helper()
	if err := netdev.SetSysctls(shared.Topology.Name+"-"+p.vm, []netdev.Sysctl{{Key: key, Value: value}}); err != nil {
		t.Fatal(err)
	}
}

// serves checks HTTP, echoes, and bytes in both directions.
func (p *plainServer) serves(t *testing.T, vip netip.Addr) {
	t.Helper()
	web, echo := netip.AddrPortFrom(vip, lab.ServerPort).String(), netip.AddrPortFrom(vip, lab.EchoPort).String()
	for range 10 {
		if who, err := get(web, "/"); err != nil || who != p.vm {
			t.Fatalf("%s: %q answers: %v", web, who, err)
		}
		echoOnce(t, "udp", echo, "a datagram to the VIP")
	}
}
