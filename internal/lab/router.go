package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"text/template"
)

// router runs the routing software of the lab's router.
type router interface {
	// start writes the configuration and starts the daemons.
	start(ctx context.Context, l *Lab, c routerConfig) error
	// ready returns nil when sessions can be accepted.
	ready(ctx context.Context) error
	// sessions returns the states of all BGP sessions, by neighbor: "established", or the daemon's
	// text.
	sessions(ctx context.Context) (map[netip.Addr]string, error)
	// paths returns the AS_PATHs of all routes to a prefix, as the daemon writes them.
	paths(ctx context.Context, prefix netip.Prefix) ([]string, error)
	// keepRoutes makes the router keep the routes of BGP speakers that are replaced, or ends that.
	// It does nothing for daemons that always keep them.
	keepRoutes(ctx context.Context, keep bool) error
}

// routerConfig is the input of a generated configuration.
type routerConfig struct {
	Name     string
	RouterID netip.Addr
	ASN      int
	MuxASN   int
	Password string
	VIPs4    netip.Prefix
	VIPs6    netip.Prefix
	NAT4     netip.Prefix
	NAT6     netip.Prefix
	// Local4 and Local6 are the addresses on the muxes' LAN.
	Local4, Local6 netip.Addr
	Muxes          []muxNeighbour
	MaxPaths       int
}

// muxNeighbour is one mux, with a separate session for each family.
type muxNeighbour struct {
	Name   string
	V4, V6 netip.Addr
}

// newRouterConfig describes the single router of a topology.
func newRouterConfig(t Topology, password string) routerConfig {
	local := routerOnMuxes()
	c := routerConfig{
		Name:     Node{Name: "router1"}.Namespace(t.Name),
		RouterID: local.V4.Addr(),
		ASN:      RouterASN,
		MuxASN:   MuxASN,
		Password: password,
		VIPs4:    VIPs4,
		VIPs6:    VIPs6,
		NAT4:     NAT4,
		NAT6:     NAT6,
		Local4:   local.V4.Addr(),
		Local6:   local.V6.Addr(),
		MaxPaths: MaxMuxes,
	}
	for i := 1; i <= t.Muxes; i++ {
		a := MuxAddresses(i)
		c.Muxes = append(c.Muxes, muxNeighbour{fmt.Sprintf("mux%d", i), a.V4.Addr(), a.V6.Addr()})
	}
	return c
}

// newRouter returns the adapter of the topology's daemon, whose files are in dir.
func newRouter(d Daemon, dir string) router {
	if d == BIRD {
		return &birdRouter{dir: filepath.Join(dir, "bird")}
	}
	return &frrRouter{dir: filepath.Join(dir, "frr")}
}

// render fills a configuration template.
func (c routerConfig) render(text string) (string, error) {
	t, err := template.New("router").Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := t.Execute(&b, c); err != nil {
		return "", err
	}
	return b.String(), nil
}

// KeepRoutes prepares the router for the replacement of the muxes' BGP speakers, so that it keeps
// their routes meanwhile, or ends that. Meanwhile a router with BIRD keeps the routes of a lost mux
// for 15 s.
func (l *Lab) KeepRoutes(ctx context.Context, keep bool) error {
	return l.router().keepRoutes(ctx, keep)
}

// PathsAtRouter returns the AS_PATHs of all routes that the router has to a prefix: "65010", longer
// if a mux prepends to rank itself behind others.
func (l *Lab) PathsAtRouter(ctx context.Context, prefix netip.Prefix) ([]string, error) {
	return l.router().paths(ctx, prefix)
}
