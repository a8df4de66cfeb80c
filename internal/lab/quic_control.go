package lab

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/shuntlb/shunt/internal/netdev"
)

// QUICServer is a QUIC server of a VM, in addition to the VM's normal server.
type QUICServer struct {
	VM string
	// Network is "udp4" or "udp6": a VIP of each family has its own keys, and so there is a server
	// for each.
	Network string
	// Config is the configuration of connection ids (quiclb.Parse). If it is nil, they contain no
	// server id.
	Config []byte
	Retry  bool
}

func (s QUICServer) process() string { return "quic-" + s.Network }

func (l *Lab) quicConfig(s QUICServer) string {
	return filepath.Join(l.nodeDir(s.VM), s.process()+".json")
}

// StartQUIC starts a QUIC server and returns when it responds.
func (l *Lab) StartQUIC(ctx context.Context, s QUICServer) error {
	node, err := l.vm(s.VM)
	if err != nil {
		return err
	}
	address := node.Addresses().V4.Addr()
	switch s.Network {
	case "udp4":
	case "udp6":
		address = node.Addresses().V6.Addr()
	default:
		return fmt.Errorf("network: %q: must be udp4 or udp6", s.Network)
	}
	args := []string{"lab-server-quic", "--name", s.VM, "--network", s.Network, fmt.Sprintf("--retry=%t", s.Retry)}
	if s.Config != nil {
		if err := l.SetQUIC(s); err != nil {
			return err
		}
		args = append(args, "--config", l.quicConfig(s))
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if _, err := l.start(command{node: node, name: s.process(), path: l.Binary, args: args}); err != nil {
		return err
	}
	err = waitFor(ctx, s.VM+" to answer over QUIC", func(ctx context.Context) error {
		if err := l.died(s.VM, s.process()); err != nil {
			return stop{err}
		}
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		_, err := l.AskQUIC(ctx, s.VM, netip.AddrPortFrom(address, QUICPort), "/")
		return err
	})
	if err != nil {
		return l.withLog(s.VM, err)
	}
	return nil
}

// SetQUIC changes the configuration of a running QUIC server.
func (l *Lab) SetQUIC(s QUICServer) error { return writeFile(l.quicConfig(s), s.Config, 0o600) }

// StopQUIC kills a QUIC server.
func (l *Lab) StopQUIC(ctx context.Context, s QUICServer) error {
	return l.killNamed(ctx, s.VM, s.process())
}

// AskQUIC gets a path over a new HTTP/3 connection from a node.
func (l *Lab) AskQUIC(ctx context.Context, from string, target netip.AddrPort, path string) (string, error) {
	n, err := l.Topology.Find(from)
	if err != nil {
		return "", err
	}
	network := "udp4"
	if target.Addr().Is6() {
		network = "udp6"
	}
	var conn *net.UDPConn
	err = netdev.In(n.Namespace(l.Topology.Name), func() (err error) {
		conn, err = net.ListenUDP(network, nil)
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	transport := &quic.Transport{Conn: conn}
	defer transport.Close()
	web := &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: quicServerName},
		Dial: func(ctx context.Context, _ string, config *tls.Config, o *quic.Config) (*quic.Conn, error) {
			return transport.DialEarly(ctx, net.UDPAddrFromAddrPort(target), config, o)
		},
	}
	defer web.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+target.String()+path, nil)
	if err != nil {
		return "", err
	}
	answer, err := web.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("GET %s%s over QUIC: %w", target, path, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s%s over QUIC: %s", target, path, answer.Status)
	}
	return strings.TrimSpace(string(body)), err
}
