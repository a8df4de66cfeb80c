package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// frrRouter is FRR: zebra, bgpd and bfdd with sockets and files in a separate directory.
type frrRouter struct{ dir string }

const frrZebra = `hostname {{.Name}}
`

const frrBFD = `hostname {{.Name}}
`

// FRR applies GRACEFUL_SHUTDOWN (RFC 8326) without configuration: local preference 0.
const frrBGP = `hostname {{.Name}}
ip prefix-list VIPS4 seq 5 permit {{.VIPs4}} ge 32
ip prefix-list VIPS4 seq 10 permit {{.NAT4}} ge 32
ipv6 prefix-list VIPS6 seq 5 permit {{.VIPs6}} ge 128
ipv6 prefix-list VIPS6 seq 10 permit {{.NAT6}} ge 128
ip prefix-list NONE4 seq 5 deny any
ipv6 prefix-list NONE6 seq 5 deny any
router bgp {{.ASN}}
 bgp router-id {{.RouterID}}
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 timers bgp 3 9
{{- range .Muxes}}
 neighbor {{.V4}} remote-as {{$.MuxASN}}
 neighbor {{.V4}} description {{.Name}}
 neighbor {{.V4}} password {{$.Password}}
 neighbor {{.V4}} bfd 3 100 100
 neighbor {{.V4}} timers connect 1
 neighbor {{.V4}} advertisement-interval 0
 neighbor {{.V6}} remote-as {{$.MuxASN}}
 neighbor {{.V6}} description {{.Name}}
 neighbor {{.V6}} password {{$.Password}}
 neighbor {{.V6}} bfd 3 100 100
 neighbor {{.V6}} timers connect 1
 neighbor {{.V6}} advertisement-interval 0
{{- end}}
 address-family ipv4 unicast
  maximum-paths {{.MaxPaths}}
{{- range .Muxes}}
  neighbor {{.V4}} activate
  neighbor {{.V4}} prefix-list VIPS4 in
  neighbor {{.V4}} prefix-list NONE4 out
{{- end}}
 exit-address-family
 address-family ipv6 unicast
  maximum-paths {{.MaxPaths}}
{{- range .Muxes}}
  neighbor {{.V6}} activate
  neighbor {{.V6}} prefix-list VIPS6 in
  neighbor {{.V6}} prefix-list NONE6 out
{{- end}}
 exit-address-family
`

// frrFolders are the directories of FRR's daemons in distributions.
var frrFolders = []string{"/usr/lib/frr", "/usr/libexec/frr", "/usr/sbin"}

func (r *frrRouter) start(ctx context.Context, l *Lab, c routerConfig) error {
	folder := ""
	for _, f := range frrFolders {
		if _, err := os.Stat(filepath.Join(f, "bgpd")); err == nil {
			folder = f
			break
		}
	}
	if folder == "" {
		return fmt.Errorf("start router1: FRR's bgpd is in none of %s: install it (apt install frr) or use --daemon bird", strings.Join(frrFolders, ", "))
	}
	// Remove sockets of earlier daemons, because they would make these look ready.
	if err := os.RemoveAll(r.dir); err != nil {
		return fmt.Errorf("remove %s: %w", r.dir, err)
	}
	if err := makeOpenDir(r.dir); err != nil {
		return err
	}
	for daemon, text := range map[string]string{"zebra": frrZebra, "bfdd": frrBFD, "bgpd": frrBGP} {
		conf, err := c.render(text)
		if err != nil {
			return err
		}
		if err := writeFile(r.path(daemon+".conf"), []byte(conf), 0o600); err != nil {
			return err
		}
	}
	if out, err := exec.CommandContext(ctx, "chown", "-R", "frr:frr", r.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("give %s to user frr: %w: %s", r.dir, err, strings.TrimSpace(string(out)))
	}
	node := Node{Name: "router1", Kind: KindRouter, Index: 1}
	for _, daemon := range []string{"zebra", "bfdd", "bgpd"} {
		args := []string{"-u", "frr", "-g", "frr", "-z", r.path("zserv.sock"), "--vty_socket", r.dir,
			"-f", r.path(daemon + ".conf"), "-i", r.path(daemon + ".pid"), "-P", "0", "--log", "stdout"}
		switch daemon {
		case "zebra":
			args = append(args, "-s", "90000000")
		case "bfdd":
			args = append(args, bfdControl(ctx, filepath.Join(folder, daemon), r.path("bfdd.sock"))...)
		}
		if _, err := l.start(command{node: node, name: daemon, path: filepath.Join(folder, daemon), args: args, urgent: true}); err != nil {
			return err
		}
		if daemon == "zebra" { // the others look for it only once a second
			if err := waitFor(ctx, "zebra's socket", func(context.Context) error { return exists(r.path("zserv.sock")) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// bfdControl puts bfdd's control socket into the lab's directory. FRR 10 has no such socket and
// refuses the option.
func bfdControl(ctx context.Context, bfdd, socket string) []string {
	help, err := exec.CommandContext(ctx, bfdd, "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(help), "--bfdctl") {
		return nil
	}
	return []string{"--bfdctl", socket}
}

func (r *frrRouter) path(name string) string { return filepath.Join(r.dir, name) }

func (r *frrRouter) ready(ctx context.Context) error {
	_, err := r.sessions(ctx)
	return err
}

// vtysh runs one command of FRR's shell.
func (r *frrRouter) vtysh(ctx context.Context, daemon, command string) ([]byte, error) {
	if err := exists(r.path(daemon + ".vty")); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "vtysh", "--vty_socket", r.dir, "-d", daemon, "-c", command)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("vtysh -d %s -c %q: %w", daemon, command, err)
	}
	return out, nil
}

func (r *frrRouter) sessions(ctx context.Context) (map[netip.Addr]string, error) {
	out, err := r.vtysh(ctx, "bgpd", "show bgp summary json")
	if err != nil {
		return nil, err
	}
	// By address family.
	var families map[string]json.RawMessage
	if err := json.Unmarshal(out, &families); err != nil {
		return nil, fmt.Errorf("read FRR's BGP summary: %w", err)
	}
	states := map[netip.Addr]string{}
	for _, raw := range families {
		var family struct {
			Peers map[netip.Addr]struct {
				State string `json:"state"`
			} `json:"peers"`
		}
		if json.Unmarshal(raw, &family) != nil {
			continue
		}
		for peer, s := range family.Peers {
			states[peer] = strings.ToLower(s.State)
		}
	}
	return states, nil
}

func (r *frrRouter) paths(ctx context.Context, prefix netip.Prefix) ([]string, error) {
	family := "ipv4"
	if prefix.Addr().Is6() {
		family = "ipv6"
	}
	out, err := r.vtysh(ctx, "bgpd", fmt.Sprintf("show bgp %s unicast %s json", family, prefix))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Paths []struct {
			AsPath struct{ String string } `json:"aspath"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("read FRR's routes to %s: %w", prefix, err)
	}
	var paths []string
	for _, p := range answer.Paths {
		paths = append(paths, p.AsPath.String)
	}
	return paths, nil
}

// keepRoutes does nothing, because FRR ignores the end of BFD while a session restarts gracefully.
func (r *frrRouter) keepRoutes(context.Context, bool) error { return nil }
