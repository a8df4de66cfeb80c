package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

const (
	// outboundVIP is the number of the first service's VIP; those of the others follow.
	outboundVIP = 100
	// outboundPort is the first port of the far ends, which are ports of client1.
	outboundPort = 20000
	// outboundPatience bounds a connect.
	outboundPatience = 10 * time.Second
	// outboundSlack is less than the duration of a lease, in ms. A connect that is slower by more
	// than this waited for a lease.
	outboundSlack = 1
)

// outboundSizes are the sizes of a run of connections that servers open.
type outboundSizes struct {
	hosts, vms, muxes, managers int
	farEnds                     int
	rate                        float64       // connections a second of each server
	lasting                     time.Duration // of a connection, on average
	during                      time.Duration // how long connections begin
}

func (o Options) outboundSizes() outboundSizes {
	if o.Short {
		return outboundSizes{hosts: 2, vms: 2, muxes: 2, managers: 1, farEnds: 50, rate: 20, lasting: time.Second, during: 3 * time.Second}
	}
	return outboundSizes{hosts: 4, vms: 8, muxes: 2, managers: 3, farEnds: 1000, rate: 20, lasting: 10 * time.Second, during: time.Minute}
}

// connector is a server of the lab that opens connections.
type connector struct {
	namespace string
	leased    bool // its connections leave with a VIP
}

// outboundResult is the result of the connections of some servers.
type outboundResult struct {
	mu     sync.Mutex
	ms     []float64 // how long connects took, in no order
	failed int
	last   error // of the last failed one
}

func (r *outboundResult) add(took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed, r.last = r.failed+1, err
		return
	}
	r.ms = append(r.ms, float64(took)/float64(time.Millisecond))
}

// connectRow measures in a lab how many of the connections that servers open get a port
// immediately, and how long connects take.
func connectRow(ctx context.Context, o Options) (row Row, err error) {
	sizes := o.outboundSizes()
	topology := lab.DefaultTopology()
	topology.Hosts, topology.Muxes, topology.Managers = lab.Hosts{Count: sizes.hosts, VMs: sizes.vms}, sizes.muxes, sizes.managers
	err = withRigOf(ctx, o, topology, func(ctx context.Context, r *rig) error {
		fields, err := r.outbound(ctx, o, sizes)
		row = Row{snatConnects, fields}
		return err
	})
	return row, err
}

// outbound lets servers open connections and returns the figures. The last server of each host has
// no VIP: its connections leave unchanged, as a reference.
func (r *rig) outbound(ctx context.Context, o Options, sizes outboundSizes) ([]Field, error) {
	vips, err := r.outboundServices(ctx, sizes)
	if err != nil {
		return nil, err
	}
	far, err := r.listenFar(sizes.farEnds + 1)
	if err != nil {
		return nil, err
	}
	defer far.close()
	var servers []connector
	for host := 1; host <= sizes.hosts; host++ {
		for vm := 1; vm <= sizes.vms; vm++ {
			node := lab.Node{Name: lab.VMName(host, vm)}
			servers = append(servers, connector{node.Namespace(r.lab.Topology.Name), vm < sizes.vms})
		}
	}
	// One connection of each server, to a far end that is not counted, resolves neighbors and shows
	// that ports can be leased.
	for _, s := range servers {
		if err := s.awaitConnection(ctx, far.at(sizes.farEnds)); err != nil {
			return nil, err
		}
	}
	before, err := r.outboundWaits(ctx, sizes.hosts)
	if err != nil {
		return nil, err
	}
	far.reset()
	o.progressf("snat: %d servers open %g connections a second each for %v", len(servers), sizes.rate, sizes.during)
	var leased, direct outboundResult
	if err := connectAll(ctx, sizes, servers, far, &leased, &direct); err != nil {
		return nil, err
	}
	after, err := r.outboundWaits(ctx, sizes.hosts)
	if err != nil {
		return nil, err
	}
	for _, r := range []*outboundResult{&leased, &direct} {
		if len(r.ms) == 0 {
			return nil, fmt.Errorf("no server could connect: %w", r.last)
		}
	}
	if err := far.await(ctx, vips, len(leased.ms)); err != nil {
		return nil, err
	}
	if leased.failed+direct.failed > 0 {
		o.notef("snat: %d connects of servers failed, and %d of servers without a VIP; the last: %v", leased.failed, direct.failed, errors.Join(leased.last, direct.last))
	}
	return outboundFields(&leased, &direct, after-before), nil
}

// outboundFields returns the figures of connections, `waited` packets of which found no port.
func outboundFields(leased, direct *outboundResult, waited uint64) []Field {
	all := len(leased.ms) + leased.failed
	usual, quick := Percentile(direct.ms, 0.99), 0
	for _, ms := range leased.ms {
		if ms <= usual+outboundSlack {
			quick++
		}
	}
	return []Field{
		{localShareField, 1 - min(float64(waited)/float64(all), 1)}, {"minimum_share", float64(quick) / float64(all)}, {"connects", all}, {"failed", leased.failed},
		{"connect_p50_ms", Percentile(leased.ms, 0.5)}, {"connect_p88_ms", Percentile(leased.ms, 0.88)}, {"connect_p96_ms", Percentile(leased.ms, 0.96)},
		{"connect_p99_ms", Percentile(leased.ms, 0.99)}, {"direct_p50_ms", Percentile(direct.ms, 0.5)}, {"direct_p99_ms", usual},
	}
}

// outboundServices makes a service for each two servers of adjacent hosts, for the connections that
// they open, and returns the VIPs.
func (r *rig) outboundServices(ctx context.Context, sizes outboundSizes) ([]netip.Addr, error) {
	request, vips := &apiv1.ApplyRequest{}, []netip.Addr(nil)
	for host := 1; host < sizes.hosts; host += 2 {
		for vm := 1; vm < sizes.vms; vm++ {
			vip, _ := lab.VIPAddresses(outboundVIP + len(vips))
			vips = append(vips, vip)
			s := &apiv1.Service{Name: fmt.Sprintf("outbound%02d", len(vips)), Vip: []string{vip.String()}}
			for at := host; at < host+2; at++ {
				s.Snat = append(s.Snat, lab.VMAddresses(at, vm).V4.Addr().String()+"@"+lab.HostAddresses(at).V4.Addr().String())
			}
			request.Objects = append(request.Objects, &apiv1.Object{Kind: &apiv1.Object_Service{Service: s}})
		}
	}
	answer, err := r.manager.Apply(ctx, connect.NewRequest(request))
	if err != nil {
		return nil, err
	}
	if err := r.waitMembers(ctx, answer.Msg.GetRevision(), nil); err != nil {
		return nil, err
	}
	for _, vip := range vips {
		if err := r.waitRoutes(ctx, vip, sizes.muxes); err != nil {
			return nil, err
		}
	}
	return vips, nil
}

// outboundWaits returns how many packets of servers found no port so far, by the counters of all
// hosts.
func (r *rig) outboundWaits(ctx context.Context, hosts int) (sum uint64, err error) {
	for host := 1; host <= hosts; host++ {
		n, err := r.hostWaits(ctx, host)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// hostWaits reads the metrics of a host's agent.
func (r *rig) hostWaits(ctx context.Context, host int) (sum uint64, err error) {
	node := lab.Node{Name: fmt.Sprintf("host%d", host)}
	client := http.Client{Transport: &http.Transport{DialContext: netdev.Dialer(node.Namespace(r.lab.Topology.Name)), DisableKeepAlives: true}}
	at := netip.AddrPortFrom(lab.HostAddresses(host).V4.Addr(), lab.MetricsPort)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	return waitsOf(answer.Body)
}

// waitsOf returns, from a host's metrics, the sum of the packets that waited for a port and those
// that were dropped without one.
func waitsOf(metrics io.Reader) (sum uint64, err error) {
	lines, found := bufio.NewScanner(metrics), 0
	for lines.Scan() {
		series, value, _ := strings.Cut(lines.Text(), " ")
		if !strings.HasPrefix(series, "shunt_host_packets_total{") || !strings.Contains(series, `reason="out_snat_waits"`) && !strings.Contains(series, `reason="out_snat_no_port"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metrics: %q: must be a number", lines.Text())
		}
		sum, found = sum+uint64(n), found+1
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if found != 2 {
		return 0, fmt.Errorf("metrics have %d of the 2 counters of packets without a port", found)
	}
	return sum, nil
}

// connectAll lets every server open connections to far ends, of which the k-th is chosen in
// proportion to 1/k, and waits for all of them.
func connectAll(ctx context.Context, sizes outboundSizes, servers []connector, far *farEnds, leased, direct *outboundResult) error {
	weights, sum := make([]float64, sizes.farEnds), 0.0
	for k := range weights {
		sum += 1 / float64(k+1)
		weights[k] = sum
	}
	errs := make([]error, len(servers))
	var group sync.WaitGroup
	for i, s := range servers {
		into := direct
		if s.leased {
			into = leased
		}
		random := rand.New(rand.NewPCG(uint64(i), 7))
		group.Go(func() {
			errs[i] = s.connects(ctx, sizes, func() (netip.AddrPort, time.Duration, time.Duration) {
				k, _ := slices.BinarySearch(weights, random.Float64()*sum)
				return far.at(k), time.Duration(random.ExpFloat64() * float64(time.Second) / sizes.rate), time.Duration(random.ExpFloat64() * float64(sizes.lasting))
			}, into)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// connects opens a server's connections when they are due, whether or not earlier ones succeeded.
// next returns the far end, the pause before the connection and its duration.
func (s connector) connects(ctx context.Context, sizes outboundSizes, next func() (to netip.AddrPort, after, lasting time.Duration), into *outboundResult) error {
	end, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	err := netdev.In(s.namespace, func() error {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for start, at := time.Now(), time.Duration(0); ; {
			to, after, lasting := next()
			if at += after; at >= sizes.during {
				return nil
			}
			timer.Reset(time.Until(start.Add(at)))
			select {
			case <-timer.C:
			case <-ctx.Done():
				return ctx.Err()
			}
			fd, err := outboundSocket()
			if err != nil {
				return err
			}
			group.Go(func() {
				defer unix.Close(fd)
				took, err := timeConnect(fd, to)
				into.add(took, err)
				if err == nil {
					_ = pause(end, lasting) // the end of the run closes the others
				}
			})
		}
	})
	cancel()
	group.Wait()
	return err
}

// timeConnect connects a socket and returns the duration of the handshake as measured by the
// kernel. If the SYN was retransmitted there is no such measurement, and it returns this process's.
func timeConnect(fd int, to netip.AddrPort) (time.Duration, error) {
	began := time.Now()
	err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		err = awaitWritable(fd, began.Add(outboundPatience))
	}
	if err != nil {
		return 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	took := time.Since(began)
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, fmt.Errorf("measure the connect to %s: %w", to, err)
	}
	if info.Total_retrans == 0 && info.Rtt > 0 {
		took = time.Duration(info.Rtt) * time.Microsecond
	}
	return took, nil
}

// awaitWritable waits until a socket's connect completes, and returns its error.
func awaitWritable(fd int, until time.Time) error {
	for {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(max(time.Until(until), 0)/time.Millisecond))
		switch {
		case errors.Is(err, unix.EINTR): // of the runtime's signals
		case err != nil:
			return err
		case ready == 0:
			return unix.ETIMEDOUT
		default:
			failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && failed != 0 {
				err = unix.Errno(failed)
			}
			return err
		}
	}
}

// outboundSocket returns a non-blocking TCP socket of the current namespace.
func outboundSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	return fd, nil
}

// awaitConnection opens connections from a server until one succeeds, and closes it.
func (s connector) awaitConnection(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
	defer cancel()
	for {
		conn, err := netdev.Dialer(s.namespace)(ctx, "tcp4", to.String())
		if err == nil {
			return conn.Close()
		}
		if wait := pause(ctx, pollEvery); wait != nil {
			return fmt.Errorf("connect from %s: %w", s.namespace, errors.Join(err, wait))
		}
	}
}

// farEnds are listeners in client1, each a separate far end.
type farEnds struct {
	address   netip.Addr
	listeners []net.Listener
	group     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	seen  map[netip.Addr]int // connections by source address
}

// listenFar makes n far ends, which close a connection when the peer does.
func (r *rig) listenFar(n int) (*farEnds, error) {
	f := &farEnds{address: r.clientAddress(), conns: map[net.Conn]bool{}, seen: map[netip.Addr]int{}}
	err := netdev.In(r.clientNamespace(), func() error {
		for i := range n {
			l, err := net.Listen("tcp4", f.at(i).String())
			if err != nil {
				return err
			}
			f.listeners = append(f.listeners, l)
			f.group.Go(func() { f.accept(l) })
		}
		return nil
	})
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// at returns the address of the k-th far end, from 0.
func (f *farEnds) at(k int) netip.AddrPort {
	return netip.AddrPortFrom(f.address, uint16(outboundPort+k))
}

func (f *farEnds) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.conns[conn] = true
		f.seen[conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()]++
		f.mu.Unlock()
		f.group.Go(func() {
			_, _ = io.Copy(io.Discard, conn) // until the server closes it, or close does
			f.mu.Lock()
			delete(f.conns, conn)
			f.mu.Unlock()
			conn.Close()
		})
	}
}

// reset clears the connection counts.
func (f *farEnds) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.seen)
}

// from returns how many connections came from the addresses.
func (f *farEnds) from(addresses []netip.Addr) (sum int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range addresses {
		sum += f.seen[a]
	}
	return sum
}

// await waits until count connections came from the addresses, because the kernel completes
// handshakes before they are accepted.
func (f *farEnds) await(ctx context.Context, addresses []netip.Addr, want int) error {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	for f.from(addresses) < want {
		if err := pause(ctx, pollEvery); err != nil {
			return fmt.Errorf("%d connections came from VIPs: want all %d: %w", f.from(addresses), want, err)
		}
	}
	return nil
}

// close ends listeners and connections.
func (f *farEnds) close() {
	for _, l := range f.listeners {
		l.Close()
	}
	f.mu.Lock()
	for conn := range f.conns {
		conn.Close()
	}
	f.mu.Unlock()
	f.group.Wait()
}
