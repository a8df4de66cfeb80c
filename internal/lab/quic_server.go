package lab

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/shuntlb/shunt/pkg/quiclb"
)

const (
	// quicIdle is the idle timeout of a lab's QUIC connections: longer than any loss that they must
	// survive.
	quicIdle = 30 * time.Second
	// quicResetSecret makes a restarted server send the same stateless resets as before. It
	// protects nothing in a lab.
	quicResetSecret = "a lab's servers"
	// followEvery is the interval at which a server checks its configuration.
	followEvery = 100 * time.Millisecond
)

// QUICOptions configure a QUIC server of a lab.
type QUICOptions struct {
	// Name is the name in its responses.
	Name string
	// Network is "udp", "udp4" or "udp6". Port 0 takes any.
	Network string
	Port    int
	// Config is a file as quiclb.Load reads it, which is followed. Without it connection ids are
	// random and contain no server id.
	Config string
	// Retry makes every client prove its address first (RFC 9000 section 8.1.2).
	Retry bool
	// Listening is called with the address when the server listens. It may be nil.
	Listening func(net.Addr)
	Log       *slog.Logger
}

// ServeQUIC runs an HTTP/3 server until the context ends. It serves the paths of a lab's HTTP
// servers, and GET /quic with the configuration of its connection ids.
func ServeQUIC(ctx context.Context, o QUICOptions) error {
	conn, err := net.ListenUDP(o.Network, &net.UDPAddr{Port: o.Port})
	if err != nil {
		return fmt.Errorf("serve quic: %w", err)
	}
	defer conn.Close()
	transport := &quic.Transport{Conn: conn, ConnectionIDLength: 8}
	if o.Retry {
		transport.VerifySourceAddress = func(net.Addr) bool { return true }
	}
	handler := http.NewServeMux()
	handler.Handle("/", webHandler(o.Name))
	if o.Config != "" {
		generator, err := quicGenerator(ctx, o, transport)
		if err != nil {
			return err
		}
		handler.HandleFunc("GET /quic", func(w http.ResponseWriter, _ *http.Request) {
			newest, _ := generator.Configs().Newest()
			io.WriteString(w, newest.String()+"\n")
		})
	}
	cert, err := quicCertificate()
	if err != nil {
		return err
	}
	config := http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{cert}})
	listener, err := transport.ListenEarly(config, &quic.Config{MaxIdleTimeout: quicIdle})
	if err != nil {
		return fmt.Errorf("serve quic: %w", err)
	}
	defer transport.Close()
	if o.Listening != nil {
		o.Listening(conn.LocalAddr())
	}
	server := &http3.Server{Handler: handler}
	stop := context.AfterFunc(ctx, func() { server.Close(); listener.Close() })
	defer stop()
	err = server.ServeListener(listener)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve quic: %w", err)
}

// quicGenerator makes the transport's connection ids by the configuration in a file, until ctx
// ends.
func quicGenerator(ctx context.Context, o QUICOptions, transport *quic.Transport) (*quiclb.Generator, error) {
	configs, err := quiclb.Load(o.Config)
	if err != nil {
		return nil, err
	}
	generator, err := quiclb.NewGenerator(configs)
	if err != nil {
		return nil, err
	}
	newest, _ := configs.Newest()
	reset := quic.StatelessResetKey(newest.ResetKey([]byte(quicResetSecret)))
	transport.StatelessResetKey = &reset
	transport.ConnectionIDGenerator = quiclb.For(generator, quic.ConnectionIDFromBytes)
	go generator.Follow(ctx, o.Config, followEvery, func(configs quiclb.Configs, err error) {
		if err != nil {
			o.Log.Warn("connection ids stay as they were", "error", err)
			return
		}
		newest, _ := configs.Newest()
		o.Log.Info("connection ids", "config", newest.String())
	})
	return generator, nil
}

// quicCertificate makes an untrusted certificate, because clients of labs do not verify it.
func quicCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(1, 0, 0), DNSNames: []string{quicServerName}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
