package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane/proofrun"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// silences are the cases about pushes. The long one runs only if it is named.
var silences = []struct {
	name  string
	after time.Duration
	long  bool
}{{"idle-1", time.Second, false}, {"idle-70", 70 * time.Second, false}, {"idle-700", 700 * time.Second, true}}

const (
	// pushVIP is the number of the VIP of the pushes.
	pushVIP = 50
	// pushLate is when a push counts as late: far above the delay on a busy machine, and below that
	// of repeated retransmissions.
	pushLate = time.Second
	// pushPatience bounds the wait for a push after it was sent. The server retransmits for as
	// long.
	pushPatience = 5 * time.Minute
)

// pushEngine is a path to a server that sends after a silence.
type pushEngine struct {
	name, client string
	target       netip.AddrPort
	servers      []string // namespaces of the servers that it may lead to
}

// pushes measures every selected silence, all paths in parallel.
func (r *rig) pushes(ctx context.Context, o Options, sizes cheetahSizes, emit func(Row)) error {
	wanted := false
	for _, s := range silences {
		wanted = wanted || o.wantsSilence(s.name, s.long)
	}
	if !wanted {
		return nil
	}
	engines, done, err := r.pushEngines(ctx, o)
	if err != nil {
		return err
	}
	defer done()
	for _, s := range silences {
		if !o.wantsSilence(s.name, s.long) {
			continue
		}
		after := s.after
		if o.Short {
			after = min(after, time.Second)
		}
		o.progressf("cheetah: %s of silence", after)
		rows, err := r.push(ctx, engines, after, sizes.pushes)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		for _, row := range rows {
			row.Case = s.name
			emit(row)
		}
	}
	return ctx.Err()
}

// wantsSilence reports whether a case about pushes was selected.
func (o Options) wantsSilence(name string, long bool) bool {
	return o.wants(name) && (!long || o.wantsLong(name))
}

// pushEngines makes the paths: through muxes and hosts to the first server of each host, to a
// server with Cheetah's encoding, and to another server directly.
func (r *rig) pushEngines(ctx context.Context, o Options) (engines []pushEngine, done func(), err error) {
	backends := r.backends(r.lab.Topology.Hosts.Count)
	vip, _ := lab.VIPAddresses(pushVIP)
	object := service("cheetah-push", vip, backends, servicePort)
	object.GetService().Endpoints[0].Affinity = "cookie"
	if err := r.apply(ctx, object); err != nil {
		return nil, nil, err
	}
	if err := r.waitRoutes(ctx, vip, r.lab.Topology.Muxes); err != nil {
		return nil, nil, err
	}
	if err := r.waitKeys(ctx, vip, keysSteady); err != nil {
		return nil, nil, err
	}
	shunt := pushEngine{name: cheetahShunt, client: "client1", target: netip.AddrPortFrom(vip, servicePort)}
	for i := range backends {
		shunt.servers = append(shunt.servers, lab.VMName(i+1, 1))
	}
	direct := func(name, client string, vm int) pushEngine {
		return pushEngine{name: name, client: client, target: netip.AddrPortFrom(lab.VMAddresses(1, vm).V4.Addr(), lab.ServerPort), servers: []string{lab.VMName(1, vm)}}
	}
	theirs := direct(cheetahTheirs, "client2", 2)
	published, err := r.publish(theirs.servers[0])
	if err != nil {
		return nil, nil, err
	}
	done = func() {
		if err := published.Close(); err != nil {
			o.notef("take their encoding off its device: %v", err)
		}
	}
	return []pushEngine{shunt, theirs, direct(cheetahDirect, "client3", 3)}, done, nil
}

// publish attaches Cheetah's encoding to the device of a server.
func (r *rig) publish(vm string) (published *proofrun.Published, err error) {
	err = netdev.In(r.namespace(vm), func() error {
		dev, err := net.InterfaceByName(lab.Uplink)
		if err != nil {
			return err
		}
		published, err = proofrun.AttachPublished(dev.Index, lab.ServerPort, proofrun.PublishedBits)
		return err
	})
	return published, err
}

// namespace returns the namespace of a node.
func (r *rig) namespace(node string) string {
	return lab.Node{Name: node}.Namespace(r.lab.Topology.Name)
}

// push lets servers be silent on count connections of each path and returns the delays of their
// pushes.
func (r *rig) push(ctx context.Context, engines []pushEngine, after time.Duration, count int) (rows []Row, err error) {
	before := make([]pushDrops, len(engines))
	for i, e := range engines {
		if before[i], err = r.drops(e); err != nil {
			return nil, err
		}
	}
	delays := make([][]time.Duration, len(engines))
	errs := make([][]error, len(engines))
	var group sync.WaitGroup
	for i, e := range engines {
		delays[i], errs[i] = make([]time.Duration, count), make([]error, count)
		for n := range count {
			group.Go(func() { delays[i][n], errs[i][n] = r.hear(ctx, e, after) })
		}
	}
	group.Wait()
	for i, e := range engines {
		if err := errors.Join(errs[i]...); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		now, err := r.drops(e)
		if err != nil {
			return nil, err
		}
		late, lost, worst := 0, 0, time.Duration(0)
		for _, d := range delays[i] {
			if d > pushPatience {
				lost++
				continue
			}
			if worst = max(worst, d); d > pushLate {
				late++
			}
		}
		rows = append(rows, Row{Fields: []Field{
			{engineField, e.name}, {"idle_s", after.Seconds()}, {"pushes", count}, {"at_once", count - late - lost}, {"late", late + lost}, {"lost", lost},
			{pushDelayField, round(worst.Seconds())}, {"paws", int(now.paws - before[i].paws)}, {"tsecr", int(now.tsecr - before[i].tsecr)},
		}})
	}
	return rows, nil
}

// hear opens a connection, waits for the server's first line, and returns the delay of the second.
// It returns more than pushPatience if the second does not arrive.
func (r *rig) hear(ctx context.Context, e pushEngine, after time.Duration) (late time.Duration, err error) {
	dialing, cancel := context.WithTimeout(ctx, lifePatience)
	defer cancel()
	var conn net.Conn
	err = netdev.In(r.namespace(e.client), func() error {
		// Keep-alives of the client would be answered and end the silence.
		d := net.Dialer{FallbackDelay: -1, KeepAlive: -1}
		conn, err = d.DialContext(dialing, "tcp4", e.target.String())
		return err
	})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(lifePatience)); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(conn, "GET /push?after=%s HTTP/1.1\r\nHost: push\r\n\r\n", after); err != nil {
		return 0, err
	}
	lines := bufio.NewReader(conn)
	for line := ""; line != lab.PushWord; {
		if line, err = lines.ReadString('\n'); err != nil {
			return 0, fmt.Errorf("from %s to %s: wait for the first line: %w", conn.LocalAddr(), e.target, err)
		}
		line = strings.TrimSpace(line)
	}
	if err := conn.SetDeadline(time.Now().Add(after + pushPatience)); err != nil {
		return 0, err
	}
	line, err := lines.ReadString('\n')
	heard := time.Now()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return pushPatience + 1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("from %s to %s: wait for the push: %w", conn.LocalAddr(), e.target, err)
	}
	sent, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the push: %w", err)
	}
	return heard.Sub(time.Unix(0, sent)), nil
}

// pushDrops counts the segments that kernels dropped because of their timestamps.
type pushDrops struct{ paws, tsecr uint64 }

// drops reads the drops of a path's client and servers so far.
func (r *rig) drops(e pushEngine) (d pushDrops, err error) {
	if d.paws, err = r.tcpCounter(e.client, "PAWSEstab"); err != nil {
		return d, err
	}
	for _, server := range e.servers {
		n, err := r.tcpCounter(server, "TSEcrRejected")
		if err != nil {
			return d, err
		}
		d.tsecr += n
	}
	return d, nil
}

// tcpCounter reads a counter of a node's TCP, by its name in /proc/net/netstat. A counter that this
// kernel lacks is 0.
func (r *rig) tcpCounter(node, name string) (value uint64, err error) {
	err = netdev.In(r.namespace(node), func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		value, err = netstat(string(text), name)
		return err
	})
	return value, err
}

// netstat finds a counter in pairs of lines, names above values.
func netstat(text, name string) (uint64, error) {
	lines := strings.Split(text, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		for j, n := range names {
			if n == name && j < len(values) {
				return strconv.ParseUint(values[j], 10, 64)
			}
		}
	}
	return 0, nil
}
