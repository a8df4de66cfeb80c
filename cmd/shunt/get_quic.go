package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// quicFlags holds the flags that select servers of shunt get quic.
type quicFlags struct{ backend, vip, port string }

func (q *quicFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&q.backend, "backend", "", "of quic: only the server with this `address`; with -o json the file that it reads")
	fl.StringVar(&q.vip, "vip", "", "of quic: only endpoints of this VIP")
	fl.StringVar(&q.port, "port", "", "of quic: only endpoints of this port, as the service has it")
}

func (q *quicFlags) given() bool { return *q != quicFlags{} }

func (q *quicFlags) check(service string) error {
	if service == "" {
		return usagef("needs quic SERVICE")
	}
	for flag, value := range map[string]string{"--backend": q.backend, "--vip": q.vip} {
		if _, err := netip.ParseAddr(value); value != "" && err != nil {
			return usagef("%s: %q: must be an IPv4 or IPv6 address", flag, value)
		}
	}
	return nil
}

// quicConfigs is a server's configuration file, as package quiclb reads it.
type quicConfigs struct {
	Configs []quicConfig `json:"configs"`
}

// quicConfig is one configuration. Package pkg/quiclb documents the fields.
type quicConfig struct {
	ID          uint32 `json:"id"`
	Format      string `json:"format"`
	Key         string `json:"key,omitempty"`
	ServerID    string `json:"serverId"`
	NonceLength uint32 `json:"nonceLength,omitempty"`
	Active      bool   `json:"active"`
}

// quicServer is a server as a member of one endpoint.
type quicServer struct {
	VIP       string       `json:"vip"`
	Port      string       `json:"port"`
	DIP       string       `json:"dip"`
	DIPPort   uint32       `json:"dipPort"`
	CIDLength uint32       `json:"cidLength,omitempty"`
	Configs   []quicConfig `json:"configs"`
}

func quicServerOf(s *apiv1.QUICServer) quicServer {
	out := quicServer{VIP: s.GetVip(), Port: s.GetPort(), DIP: s.GetDip(), DIPPort: s.GetDipPort(), CIDLength: s.GetCidLength(), Configs: []quicConfig{}}
	for _, c := range s.GetConfigs() {
		out.Configs = append(out.Configs, quicConfig{
			ID: c.GetId(), Format: c.GetFormat(), Key: hex.EncodeToString(c.GetKey()), ServerID: hex.EncodeToString(c.GetServerId()),
			NonceLength: c.GetNonceLength(), Active: c.GetActive(),
		})
	}
	return out
}

// getQUIC prints the configurations with which a service's servers make connection ids. Tables omit
// the keys.
func (c *client) getQUIC(ctx context.Context, g *globals, w io.Writer, service string, q *quicFlags) error {
	res, err := c.QUICConfig(ctx, connect.NewRequest(&apiv1.QUICConfigRequest{Service: service, Backend: q.backend}))
	if err != nil {
		return err
	}
	var servers []quicServer
	for _, s := range res.Msg.GetServers() {
		vip, _ := netip.ParseAddr(q.vip)
		if (q.vip == "" || s.GetVip() == vip.String()) && (q.port == "" || s.GetPort() == q.port) {
			servers = append(servers, quicServerOf(s))
		}
	}
	if len(servers) == 0 {
		return fmt.Errorf("%s: no quic endpoint with affinity cookie has this VIP and port", service)
	}
	if g.format == formatTable {
		return table(w, quicRows(servers))
	}
	if q.backend == "" {
		return g.format.encode(w, map[string][]quicServer{"servers": servers})
	}
	for _, s := range servers[1:] {
		if !reflect.DeepEqual(s.Configs, servers[0].Configs) {
			return fmt.Errorf("--backend: %s: its place at %s port %s differs from that at %s port %s: --vip and --port choose one",
				q.backend, s.VIP, s.Port, servers[0].VIP, servers[0].Port)
		}
	}
	return g.format.encode(w, quicConfigs{servers[0].Configs})
}

func quicRows(servers []quicServer) [][]string {
	rows := [][]string{{"VIP", "PORT", "BACKEND", "FORMAT", "SERVER-ID", "CONFIGS", "ACTIVE", "CID-BYTES"}}
	for _, s := range servers {
		var ids []string
		active, first := "", s.Configs[0]
		for _, c := range s.Configs {
			ids = append(ids, fmt.Sprint(c.ID))
			if c.Active {
				active = fmt.Sprint(c.ID)
			}
		}
		length := ""
		if s.CIDLength != 0 {
			length = fmt.Sprint(s.CIDLength)
		}
		rows = append(rows, []string{s.VIP, s.Port, backendText(s.DIP, s.DIPPort), first.Format, first.ServerID, strings.Join(ids, ","), active, length})
	}
	return rows
}
