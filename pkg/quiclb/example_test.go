package quiclb_test

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/shuntlb/shunt/pkg/quiclb"
)

// A quic-go server whose connections stay on it while clients move. `shunt get quic SERVICE
// --backend DIP -o json` writes the file.
func ExampleGenerator() {
	serve := func(ctx context.Context, path string, secret []byte, config *tls.Config) (*quic.Listener, error) {
		configs, err := quiclb.Load(path)
		if err != nil {
			return nil, err
		}
		generator, err := quiclb.NewGenerator(configs)
		if err != nil {
			return nil, err
		}
		go generator.Follow(ctx, path, time.Second, func(_ quiclb.Configs, err error) {
			if err != nil {
				log.Print(err)
			}
		})
		conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: 8443})
		if err != nil {
			return nil, err
		}
		newest, _ := configs.Newest()
		reset := quic.StatelessResetKey(newest.ResetKey(secret))
		transport := &quic.Transport{
			Conn:                  conn,
			ConnectionIDGenerator: quiclb.For(generator, quic.ConnectionIDFromBytes),
			StatelessResetKey:     &reset,
		}
		return transport.Listen(config, nil)
	}
	_ = serve
}

func ExampleParse() {
	configs, err := quiclb.Parse([]byte(`{"configs": [
		{"id": 1, "format": "quiclb", "key": "8f95f09245765f80256934e50c66207f", "serverId": "007000", "nonceLength": 13, "active": false},
		{"id": 2, "format": "quiclb", "key": "fdf726a9893ec05c0632d3956680baf0", "serverId": "007000", "nonceLength": 13, "active": true}
	]}`))
	if err != nil {
		log.Fatal(err)
	}
	newest, _ := configs.Newest()
	fmt.Println(newest, "of member", quiclb.Member(newest.ServerID))
	_, err = quiclb.Parse([]byte(`{"configs": [{"id": 7, "format": "quiclb-plain", "serverId": "0070", "nonceLength": 8}]}`))
	fmt.Println(err)
	// Output:
	// quiclb config 2, server id 007000, 17-byte ids of member 7
	// configs[0].id: 7: must be 0 to 6
}

func ExampleDecoder() {
	decoder, err := quiclb.NewDecoder(quiclb.Scheme{ID: 1, Format: quiclb.Plain, ServerIDLength: 3, NonceLength: 4})
	if err != nil {
		log.Fatal(err)
	}
	// The start of a packet with a short header (RFC 8999 section 5.2).
	datagram, err := hex.DecodeString("40" + "20007000a1b2c3d4" + "ffffff")
	if err != nil {
		log.Fatal(err)
	}
	cid, _, _ := quiclb.Destination(datagram, 8)
	id, ok := decoder.ServerID(cid)
	fmt.Println(hex.EncodeToString(id), ok)
	// Output: 007000 true
}
