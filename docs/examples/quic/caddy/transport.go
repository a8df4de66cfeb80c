package quic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"go.uber.org/zap"

	"github.com/shuntlb/shunt/pkg/quiclb"
)

// transports outlive configurations: a new one takes over the socket, the connections and the count of nonces.
var transports = caddy.NewUsagePool()

// transport is a UDP socket with QUIC on it.
type transport struct {
	key       string
	made      options
	conn      net.PacketConn
	quic      *quic.Transport
	listener  *quic.EarlyListener
	generator *quiclb.Generator
	tls       atomic.Pointer[tls.Config]
	stop      context.CancelFunc
}

// options are what a transport has for its life.
type options struct {
	config, secret string
	retry          bool
}

// acquire returns the transport of the app's address, which is new or that of the configuration before.
func acquire(a *App) (*transport, error) {
	address, err := net.ResolveUDPAddr("udp", a.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %q: %w", a.Listen, err)
	}
	key, wanted := address.String(), options{a.Config, a.Secret, a.Retry}
	value, _, err := transports.LoadOrNew(key, func() (caddy.Destructor, error) { return newTransport(a, key, address) })
	if err != nil {
		return nil, err
	}
	t := value.(*transport)
	if t.made != wanted {
		return nil, errors.Join(fmt.Errorf("config, secret and retry of %s: %+v: must stay %+v until Caddy starts again", address, wanted, t.made), t.release())
	}
	return t, nil
}

func newTransport(a *App, key string, address *net.UDPAddr) (*transport, error) {
	configs, err := quiclb.Load(a.Config)
	if err != nil {
		return nil, err
	}
	t := &transport{key: key, made: options{a.Config, a.Secret, a.Retry}}
	if t.generator, err = quiclb.NewGenerator(configs); err != nil {
		return nil, err
	}
	t.quic = &quic.Transport{ConnectionIDGenerator: quiclb.For(t.generator, quic.ConnectionIDFromBytes)}
	if a.Secret != "" {
		secret, err := os.ReadFile(a.Secret)
		if err == nil && len(secret) < 16 {
			err = fmt.Errorf("%d bytes: must be at least 16", len(secret))
		}
		if err != nil {
			return nil, fmt.Errorf("secret: %w", err)
		}
		newest, _ := configs.Newest()
		reset := quic.StatelessResetKey(newest.ResetKey(secret))
		t.quic.StatelessResetKey = &reset
	}
	if a.Retry {
		t.quic.VerifySourceAddress = func(net.Addr) bool { return true }
	}
	conn, err := net.ListenUDP("udp", address)
	if err != nil {
		return nil, err
	}
	t.conn, t.quic.Conn = conn, conn
	current := func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		return t.tls.Load().GetConfigForClient(hello)
	}
	config := http3.ConfigureTLSConfig(&tls.Config{GetConfigForClient: current})
	if t.listener, err = t.quic.ListenEarly(config, &quic.Config{Allow0RTT: true}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	log := a.log
	go t.generator.Follow(ctx, a.Config, time.Second, func(_ quiclb.Configs, err error) {
		if err != nil {
			log.Error("connection ids stay as they were", zap.Error(err))
			return
		}
		log.Info("connection ids", zap.Stringer("made_under", t.minting()))
	})
	return t, nil
}

// minting is the configuration that connection ids are made under.
func (t *transport) minting() quiclb.Config {
	newest, _ := t.generator.Configs().Newest()
	return newest
}

func (t *transport) release() error {
	_, err := transports.Delete(t.key)
	return err
}

// Destruct implements caddy.Destructor: nobody uses the transport any more.
func (t *transport) Destruct() error {
	t.stop()
	return errors.Join(t.listener.Close(), t.quic.Close(), t.conn.Close())
}

// share is one configuration's use of a transport: it ends by itself, while the next one goes on with the same listener.
type share struct {
	transport *transport
	ctx       context.Context
	stop      context.CancelFunc
}

func (t *transport) share() *share {
	ctx, stop := context.WithCancel(context.Background())
	return &share{transport: t, ctx: ctx, stop: stop}
}

// Accept implements http3.QUICListener.
func (s *share) Accept(ctx context.Context) (*quic.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	conn, err := s.transport.listener.Accept(ctx)
	if err != nil && s.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	return conn, err
}

// Addr implements http3.QUICListener.
func (s *share) Addr() net.Addr { return s.transport.listener.Addr() }

// Close implements http3.QUICListener.
func (s *share) Close() error {
	s.stop()
	return nil
}
