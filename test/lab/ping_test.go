package lab_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/wire"
)

// ICMP types (RFC 792, RFC 4443).
const (
	echoReply4 = 0
	echoReply6 = 129
)

// The muxes reply to ping to a VIP of either family, and do not reply for other addresses.
func TestVIPAnswersPing(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "ping", number: 27, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1"}}
	web.up(t)
	for _, vip := range web.vips() {
		for seq := range uint16(5) {
			await(t, "an echo reply from "+vip.String(), func(ctx context.Context) error { return ping(vip, seq) })
		}
	}
}

// ping sends one echo request from client1 and waits for its reply.
func ping(to netip.Addr, seq uint16) error {
	network, listen, reply := "ip4:icmp", "0.0.0.0", byte(echoReply4)
	if to.Is6() {
		network, listen, reply = "ip6:ipv6-icmp", "::", echoReply6
	}
	const id = 4711
	return netdev.In(client1(), func() error {
		conn, err := net.ListenPacket(network, listen)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		// The kernel fills in the checksum of ICMPv6, which covers addresses.
		message := wire.Echo{ID: id, Seq: seq, Data: []byte("shunt")}.Bytes(to, to)
		if _, err := conn.WriteTo(message, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			return err
		}
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return err
			}
			if n < 8 || buf[0] != reply || int(buf[4])<<8|int(buf[5]) != id || int(buf[6])<<8|int(buf[7]) != int(seq) {
				continue
			}
			if from.String() != to.String() || string(buf[8:n]) != "shunt" {
				return errors.New("the reply from " + from.String() + " is not what was sent")
			}
			return nil
		}
	})
}
