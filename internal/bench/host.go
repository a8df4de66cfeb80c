package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
)

var hostSuite = Suite{
	Name:  "host",
	Title: "Servers behind the host agent's programs, beside direct access",
	About: "Client, host and server in namespaces of their own, joined by veths with GSO; the client puts packets for the VIP into the IP-in-IP " +
		"tunnel itself, so that no mux is in the way. Through the VIP and at the server's own address in turns; `share` is the percentage " +
		"of direct access, the median over the repetitions. `download`: one connection over which the server sends; `upload`: the client does. " +
		"`repaired-…`: the connection began at another host, and all that the client sends comes to this one, which sends it on (beside direct " +
		"access to that other host). `bytes_per_packet` is what the packets with data had on average when they arrived: GSO packets go whole. " +
		"`connect`: connections a second, each opened by one of 8 clients, answered with a byte and reset.",
	Plotted: []string{"share"}, Unit: "% of direct access",
	Cases: []string{"download", "upload", "repaired-download", "repaired-upload", "connect"},
	Takes: 80 * time.Second, TakesShort: 15 * time.Second,
	Goals: []Goal{atLeast("download", "share", 80)},
	run:   runHost,
}

// bulkCase is a transfer through the host's programs.
type bulkCase struct {
	name     string
	way      byte
	repaired bool
}

var bulkCases = []bulkCase{
	{"download", bulkDown, false}, {"upload", bulkUp, false}, {"repaired-download", bulkDown, true}, {"repaired-upload", bulkUp, true},
}

// connectCase is the name of the case that opens connections.
const connectCase = "connect"

// Ports of the servers on the VIP and for direct access. They differ, so that no two connections
// share ports.
const (
	bulkPort      = 5001
	bulkDirect    = 5002
	connectPort   = 5003
	connectDirect = 5004
)

const (
	hostRounds   = 11
	hostDuration = 700 * time.Millisecond
	shortTurn    = 200 * time.Millisecond
	// stageFlows is the size of the flow tables: the default.
	stageFlows = 1 << 20
)

func runHost(ctx context.Context, o Options, emit func(Row)) (err error) {
	o.progressf("host: namespaces")
	s, err := openHostStage(o, stageFlows, bulkPort, connectPort)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, c := range bulkCases {
		if !o.wants(c.name) {
			continue
		}
		row, err := s.bulk(ctx, o, c)
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		emit(row)
	}
	if !o.wants(connectCase) {
		return nil
	}
	row, err := s.connectCase(ctx, o)
	if err != nil {
		return fmt.Errorf("case %s: %w", connectCase, err)
	}
	emit(row)
	return nil
}

// hostTurns returns the number of repetitions, and the time of each path in one.
func hostTurns(o Options) (int, time.Duration) {
	if o.Short {
		return 1, shortTurn
	}
	return hostRounds, hostDuration
}

// bulk measures transfers through the VIP and direct ones in turns.
func (s *hostStage) bulk(ctx context.Context, o Options, c bulkCase) (Row, error) {
	at := 0 // the host whose server has the connection
	if c.repaired {
		at = 1
	}
	for _, port := range []uint16{bulkPort, bulkDirect} {
		l, err := s.listen(at, port)
		if err != nil {
			return Row{}, err
		}
		defer l.Close()
		go serveBulk(l)
	}
	rounds, duration := hostTurns(o)
	var through, direct, shares []float64
	var data received
	before, err := s.reasons(0)
	if err != nil {
		return Row{}, err
	}
	for i := range rounds {
		o.progressf("host %s: repetition %d of %d", c.name, i+1, rounds)
		var bps [2]float64
		for turn := range 2 {
			if err := ctx.Err(); err != nil {
				return Row{}, err
			}
			which := (i + turn) % 2
			b := bulkTurn{to: netip.AddrPortFrom(benchrun.HostVIP(), bulkPort), through: at, then: 0, way: c.way, duration: duration}
			if which == 1 {
				b.to = netip.AddrPortFrom(stageDIP(at), bulkDirect)
			}
			from, err := s.dataAt(at, c.way)
			if err != nil {
				return Row{}, err
			}
			if bps[which], err = s.transfer(ctx, b); err != nil {
				return Row{}, err
			}
			to, err := s.dataAt(at, c.way)
			if err != nil {
				return Row{}, err
			}
			if which == 0 {
				data.bytes, data.packets = data.bytes+to.bytes-from.bytes, data.packets+to.packets-from.packets
			}
		}
		through, direct = append(through, bps[0]/1e9), append(direct, bps[1]/1e9)
		shares = append(shares, 100*bps[0]/bps[1])
	}
	after, err := s.reasons(0)
	if err != nil {
		return Row{}, err
	}
	if away := after["repaired_away"] - before["repaired_away"]; (away > 0) != c.repaired {
		return Row{}, fmt.Errorf("%d packets were repaired: want %v", away, c.repaired)
	}
	return Row{Case: c.name, Fields: []Field{
		{"share", round(Median(shares))}, {"gbit_ps", round(Median(through))}, {"direct_gbit_ps", round(Median(direct))},
		{"bytes_per_packet", round(float64(data.bytes) / float64(max(data.packets, 1)))}, {"runs", rounds},
	}}, nil
}

// dataAt returns the data received at the end of a transfer: at the client from host `at`, or at
// its server.
func (s *hostStage) dataAt(at int, way byte) (received, error) {
	if way == bulkDown {
		return receivedBy(s.client, stageTowards(at))
	}
	return receivedBy(s.hosts[at].server, stageServer)
}

// connectCase measures connections through the VIP and direct ones in turns.
func (s *hostStage) connectCase(ctx context.Context, o Options) (Row, error) {
	for _, port := range []uint16{connectPort, connectDirect} {
		l, err := s.listen(0, port)
		if err != nil {
			return Row{}, err
		}
		defer l.Close()
		go serveConnects(l)
	}
	if err := s.aim(0); err != nil {
		return Row{}, err
	}
	rounds, duration := hostTurns(o)
	var through, direct, shares []float64
	failures := 0
	for i := range rounds {
		o.progressf("host %s: repetition %d of %d", connectCase, i+1, rounds)
		var cps [2]float64
		for turn := range 2 {
			if err := ctx.Err(); err != nil {
				return Row{}, err
			}
			which := (i + turn) % 2
			to := netip.AddrPortFrom(benchrun.HostVIP(), connectPort)
			if which == 1 {
				to = netip.AddrPortFrom(stageDIP(0), connectDirect)
			}
			got, failed, err := s.connects(to, duration)
			if err != nil {
				return Row{}, err
			}
			cps[which], failures = got, failures+failed
		}
		through, direct = append(through, cps[0]), append(direct, cps[1])
		shares = append(shares, 100*cps[0]/cps[1])
	}
	return Row{Case: connectCase, Fields: []Field{
		{"share", round(Median(shares))}, {"cps", round(Median(through))}, {"direct_cps", round(Median(direct))},
		{"failures", failures}, {"runs", rounds},
	}}, nil
}
