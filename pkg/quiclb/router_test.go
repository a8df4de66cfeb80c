package quiclb_test

import (
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/shuntlb/shunt/pkg/quiclb"
)

// router is the simplest possible balancer: it reads the server from a connection id, or selects
// one by the client's address and port. It uses one socket per client and server, so that a server
// notices when a client moves.
type router struct {
	conn   *net.UDPConn
	length int
	wg     sync.WaitGroup

	mu      sync.Mutex
	decoder *quiclb.Decoder
	servers map[uint16]netip.AddrPort
	order   []uint16 // for the selection by address
	ways    map[way]*net.UDPConn
	// byID and byTuple count datagrams by how they were routed. elsewhere counts those routed by id
	// that the addresses would have sent to another server.
	byID, byTuple, elsewhere int
	// initials counts the long headers without a server's id per client.
	initials map[netip.AddrPort]int
}

// way is the path of a client to a server.
type way struct {
	client netip.AddrPort
	server uint16
}

func newRouter(t *testing.T, length int) *router {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := &router{conn: conn, length: length, servers: map[uint16]netip.AddrPort{}, ways: map[way]*net.UDPConn{}, initials: map[netip.AddrPort]int{}}
	r.wg.Go(r.run)
	t.Cleanup(func() {
		conn.Close()
		r.rebind()
		r.wg.Wait()
	})
	return r
}

func (r *router) address() *net.UDPAddr { return r.conn.LocalAddr().(*net.UDPAddr) }

// know sets the schemes that the router decodes.
func (r *router) know(t *testing.T, schemes ...quiclb.Scheme) {
	t.Helper()
	d, err := quiclb.NewDecoder(schemes...)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decoder = d
}

// serve adds a server under its member number.
func (r *router) serve(member uint16, at netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.servers[member] = at
}

// choose sets the servers for clients without an id.
func (r *router) choose(members ...uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order = slices.Clone(members)
}

// rebind closes all sockets towards servers, as a NAT between them would: servers see every client
// at another port. Call it while a client is silent or can lose packets in flight.
func (r *router) rebind() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w, conn := range r.ways {
		conn.Close()
		delete(r.ways, w)
	}
}

func (r *router) run() {
	buf := make([]byte, 64<<10)
	for {
		n, client, err := r.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if to := r.route(client, buf[:n]); to != nil {
			_, _ = to.Write(buf[:n])
		}
	}
}

// route returns the socket for a datagram; nil: there is none.
func (r *router) route(client netip.AddrPort, datagram []byte) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	cid, long, ok := quiclb.Destination(datagram, r.length)
	if !ok || len(r.order) == 0 {
		return nil
	}
	h := fnv.New32a()
	h.Write([]byte(client.String()))
	member := r.order[h.Sum32()%uint32(len(r.order))]
	if id, ok := r.decoder.ServerID(cid); ok && r.servers[quiclb.Member(id)].IsValid() {
		if quiclb.Member(id) != member {
			r.elsewhere++
		}
		member = quiclb.Member(id)
		r.byID++
	} else {
		r.byTuple++
		if long {
			r.initials[client]++
		}
	}
	w := way{client, member}
	if r.ways[w] == nil {
		conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(r.servers[member]))
		if err != nil {
			return nil
		}
		r.ways[w] = conn
		r.wg.Go(func() { r.answer(conn, client) })
	}
	return r.ways[w]
}

// answer forwards a server's packets to its client.
func (r *router) answer(conn *net.UDPConn, client netip.AddrPort) {
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		_, _ = r.conn.WriteToUDPAddrPort(buf[:n], client)
	}
}
