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
	// sessions are the states of all BGP sessions, by neighbour: "established", or whatever else the daemon says.
	sessions(ctx context.Context) (map[netip.Addr]string, error)
	// paths are the AS_PATHs of all routes to a prefix, as the daemon writes them.
	paths(ctx context.Context, prefix netip.Prefix) ([]string, error)
	// keepRoutes prepares the router for BGP speakers that are replaced, or ends that. Nothing for daemons that always are.
	keepRoutes(ctx context.Context, keep bool) error
}

// routerConfig is what a configuration is generated from.
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
	// Local addresses on the muxes' LAN.
	Local4, Local6 netip.Addr
	Muxes          []muxNeighbour
	MaxPaths       int
}

// muxNeighbour is one mux, with a session of its own for each family.
type muxNeighbour struct {
	Name   string
	V4, V6 netip.Addr
}

// newRouterConfig describes the one router of a topology.
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

// newRouter returns the adapter of the topology's daemon, whose files live in dir.
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

// KeepRoutes prepares the router for the replacement of BGP speakers of muxes, so that it keeps their routes meanwhile, or ends that: with BIRD a mux that is lost
// meanwhile keeps its routes for 15 s.
func (l *Lab) KeepRoutes(ctx context.Context, keep bool) error {
	return l.router().keepRoutes(ctx, keep)
}

// PathsAtRouter are the AS_PATHs of all routes that the router has to a prefix: "65010", longer where a mux ranks itself behind
// others.
func (l *Lab) PathsAtRouter(ctx context.Context, prefix netip.Prefix) ([]string, error) {
	return l.router().paths(ctx, prefix)
}
