package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/packet"
)

// muxPackets sends health checks as packets, whose replies the mux's program receives.
type muxPackets struct {
	tables *dataplane.Mux
	// devices are the interfaces with the program. addresses are the mux's own.
	devices   []int
	addresses []netip.Addr
	hops      *netdev.NextHops
	log       *slog.Logger
	asker     *packet.Asker
}

func newMuxPackets(tables *dataplane.Mux, devices []int, addresses []netip.Addr, log *slog.Logger) *muxPackets {
	return &muxPackets{tables: tables, devices: devices, addresses: addresses, hops: netdev.NewNextHops(), log: log}
}

// open makes the engine, once.
func (p *muxPackets) open(answered func([]probe.Answer)) (probe.Asker, error) {
	probes, err := p.tables.Probes()
	if err != nil {
		return nil, fmt.Errorf("probes by packets: %w", err)
	}
	sender, err := packet.NewSender()
	if err != nil {
		return nil, fmt.Errorf("probes by packets: %w", err)
	}
	p.asker, err = packet.New(packet.Options{
		Tables: probes, Sender: sender, Want: p.hops.Want, Report: answered, Devices: p.devices, Local: p.local,
		Say: func(err error) {
			p.log.Warn("probes are sent by a packet socket unless a thousand wait, which costs about twice the CPU", "error", err)
		},
	})
	if err != nil {
		return nil, err
	}
	return p.asker, nil
}

// local returns the mux's address of a family, or the zero address if it has none.
func (p *muxPackets) local(is4 bool) netip.Addr {
	for _, a := range p.addresses {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}

// run follows the next hops to servers until ctx ends.
func (p *muxPackets) run(ctx context.Context) error { return p.hops.Follow(ctx, p.asker.HopsChanged) }
