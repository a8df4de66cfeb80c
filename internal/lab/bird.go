package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// birdRouter is BIRD 2.
type birdRouter struct{ dir string }

const birdConf = `log stderr all;
router id {{.RouterID}};

protocol device { scan time 5; }
protocol bfd {
	interface "*" { min rx interval 100 ms; min tx interval 100 ms; idle tx interval 300 ms; multiplier 3; };
}
protocol kernel kernel4 { ipv4 { import none; export filter { if source = RTS_BGP then accept; reject; }; }; merge paths on limit {{.MaxPaths}}; }
protocol kernel kernel6 { ipv6 { import none; export filter { if source = RTS_BGP then accept; reject; }; }; merge paths on limit {{.MaxPaths}}; }

# GRACEFUL_SHUTDOWN (RFC 8326): prefer any other path.
filter vips4 {
	if (65535, 0) ~ bgp_community then bgp_local_pref = 0;
	if net ~ [ {{.VIPs4}}{32,32}, {{.NAT4}}{32,32} ] then accept;
	reject;
}
filter vips6 {
	if (65535, 0) ~ bgp_community then bgp_local_pref = 0;
	if net ~ [ {{.VIPs6}}{128,128}, {{.NAT6}}{128,128} ] then accept;
	reject;
}
{{range .Muxes}}
protocol bgp {{.Name}}_v4 {
	local {{$.Local4}} as {{$.ASN}};
	neighbor {{.V4}} as {{$.MuxASN}};
	password "{{$.Password}}";
	direct; bfd on; hold time 9; keepalive time 3; connect delay time 1; connect retry time 1; error wait time 1, 2;
	graceful restart aware;
	ipv4 { import filter vips4; export none; };
}
protocol bgp {{.Name}}_v6 {
	local {{$.Local6}} as {{$.ASN}};
	neighbor {{.V6}} as {{$.MuxASN}};
	password "{{$.Password}}";
	direct; bfd on; hold time 9; keepalive time 3; connect delay time 1; connect retry time 1; error wait time 1, 2;
	graceful restart aware;
	ipv6 { import filter vips6; export none; };
}
{{end}}`

func (r *birdRouter) start(_ context.Context, l *Lab, c routerConfig) error {
	path, err := exec.LookPath("bird")
	if err != nil {
		if path = "/usr/sbin/bird"; exists(path) != nil {
			return fmt.Errorf("start router1: bird is not installed: install it (apt install bird2) or use --daemon frr")
		}
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	conf, err := c.render(birdConf)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(r.dir, "bird.conf"), []byte(conf), 0o600); err != nil {
		return err
	}
	_, err = l.start(command{
		node: Node{Name: "router1", Kind: KindRouter, Index: 1}, name: "bird", path: path,
		args:   []string{"-f", "-c", filepath.Join(r.dir, "bird.conf"), "-s", r.socket()},
		urgent: true,
	})
	return err
}

func (r *birdRouter) socket() string { return filepath.Join(r.dir, "bird.ctl") }

func (r *birdRouter) ready(ctx context.Context) error {
	_, err := r.sessions(ctx)
	return err
}

func (r *birdRouter) sessions(ctx context.Context) (map[netip.Addr]string, error) {
	if err := exists(r.socket()); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "birdc", "-s", r.socket(), "show", "protocols", "all").Output()
	if err != nil {
		return nil, fmt.Errorf("birdc show protocols all: %w", err)
	}
	return birdSessions(string(out)), nil
}

func (r *birdRouter) paths(ctx context.Context, prefix netip.Prefix) ([]string, error) {
	out, err := exec.CommandContext(ctx, "birdc", "-s", r.socket(), "show", "route", "all", "for", prefix.String()).Output()
	if err != nil {
		return nil, fmt.Errorf("birdc show route: %w", err)
	}
	var paths []string
	for line := range strings.Lines(string(out)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "BGP.as_path:"); ok {
			paths = append(paths, strings.TrimSpace(path))
		}
	}
	return paths, nil
}

// keepRoutes makes BIRD keep the routes of a mux whose BFD session ends, for the restart time of
// the BGP session, or withdraw them immediately. BIRD 2.0 has no third mode: with "bfd on" it
// withdraws routes that graceful restart would keep.
func (r *birdRouter) keepRoutes(ctx context.Context, keep bool) error {
	from, to := birdBFD, birdBFDGraceful
	if !keep {
		from, to = to, from
	}
	file := filepath.Join(r.dir, "bird.conf")
	conf, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := writeFile(file, []byte(strings.ReplaceAll(string(conf), from, to)), 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "birdc", "-s", r.socket(), "configure").CombinedOutput()
	if err != nil {
		return fmt.Errorf("birdc configure: %w: %s", err, out)
	}
	if !strings.Contains(string(out), "Reconfigured") {
		return fmt.Errorf("birdc configure: %s", out)
	}
	return nil
}

// The BFD option in birdConf, and the one that keeps routes.
const (
	birdBFD         = "bfd on;"
	birdBFDGraceful = "bfd graceful;"
)

// birdSessions reads the states of BGP sessions from the text of `show protocols all`.
func birdSessions(text string) map[netip.Addr]string {
	states := map[netip.Addr]string{}
	state := ""
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch {
		case ok && key == "BGP state":
			state = strings.ToLower(value)
		case ok && key == "Neighbor address":
			if a, err := netip.ParseAddr(value); err == nil {
				states[a] = state
			}
		}
	}
	return states
}
