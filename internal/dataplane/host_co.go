package dataplane

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
)

// coLinkPin is the pin of the program's link, beside those of the host's.
const coLinkPin = "link_co"

// coWindowScale is the window scale that handshakes announce: up to 8 MiB.
const coWindowScale = 7

// HostCO implements HostCOTables: a tcx program behind host_in. Program, link and tables are pinned beside the Host's.
type HostCO struct {
	host    *Host // has the shared clock too
	objects hostCOObjects
	memory  muxMemory
	setup   []hostCOCoSetup // one
	link    link.Link

	mu    sync.Mutex
	state map[hostCOCoKey]hostCOCoEndpoint // what the map holds
}

var _ HostCOTables = (*HostCO)(nil)

// OpenCO loads the program that makes handshakes around its pinned tables, or around new ones, and puts it behind host_in; one that is there already is
// replaced in one step. The error is ErrNoCO where the kernel cannot do it. Closing the Host does not close it.
func (h *Host) OpenCO() (*HostCO, error) {
	spec, err := coSpec(h.testNoCO)
	if err != nil {
		return nil, err
	}
	for _, m := range spec.Maps {
		if m.Name[0] != '.' && m.Name != hostCOMapCoScratches {
			m.Pinning = ebpf.PinByName
		}
	}
	if h.testClock {
		if err := spec.Variables[hostCOVarCoTestClock].Set(uint32(1)); err != nil {
			return nil, fmt.Errorf("set %s: %w", hostCOVarCoTestClock, err)
		}
	}
	c := &HostCO{host: h, state: map[hostCOCoKey]hostCOCoEndpoint{}}
	if err := loadCO(spec, &c.objects, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: h.dir}}); err != nil {
		return nil, err
	}
	if err := c.begin(h); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := h.objects.HostOpenings.Set(uint32(1)); err != nil {
		return nil, errors.Join(fmt.Errorf("set %s: %w", hostVarHostOpenings, err), c.Close())
	}
	return c, nil
}

// coSpec is the embedded object. Without the function it is what it is to a kernel that has no coKfunc.
func coSpec(without bool) (*ebpf.CollectionSpec, error) {
	spec, err := loadHostCO()
	if err != nil {
		return nil, fmt.Errorf("read handshake object: %w", err)
	}
	if without {
		var f *btf.Func
		if err := spec.Types.TypeByName(coKfunc, &f); err != nil {
			return nil, fmt.Errorf("find %s: %w", coKfunc, err)
		}
		f.Name = "bpf_not_in_any_kernel"
	}
	return spec, nil
}

// coKfunc came with Linux 6.9: all else that the program needs was there with tcx.
const coKfunc = "bpf_sk_assign_tcp_reqsk"

// loadCO loads the program. The error is ErrNoCO where the kernel lacks something.
func loadCO(spec *ebpf.CollectionSpec, to *hostCOObjects, o ebpf.CollectionOptions) error {
	err := spec.LoadAndAssign(to, &o)
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return ErrNoCO
	case err != nil:
		return fmt.Errorf("load handshake program: %w", err)
	}
	return nil
}

// ProbeCO tells whether this kernel takes the program that makes handshakes: it is loaded, and goes again. The error is ErrNoCO where the kernel lacks something.
func (h *Host) ProbeCO() error {
	spec, err := coSpec(h.testNoCO)
	if err != nil {
		return err
	}
	var objects hostCOObjects
	if err := loadCO(spec, &objects, ebpf.CollectionOptions{}); err != nil {
		return err
	}
	return objects.Close()
}

// HasCO tells whether an agent before put the program there.
func (h *Host) HasCO() bool {
	_, err := os.Stat(filepath.Join(h.dir, coLinkPin))
	return err == nil
}

// adoptCO lets host_in send on what the handshake program is for, if an agent before put it there.
func (h *Host) adoptCO() error {
	if !h.HasCO() {
		return nil
	}
	if err := h.objects.HostOpenings.Set(uint32(1)); err != nil {
		return fmt.Errorf("set %s: %w", hostVarHostOpenings, err)
	}
	return nil
}

// begin reads what the tables hold and attaches the program.
func (c *HostCO) begin(h *Host) error {
	if err := mapTable(&c.memory, c.objects.CoSetups, &c.setup); err != nil {
		return err
	}
	if c.setup[0].Key.K0 == 0 && c.setup[0].Key.K1 == 0 {
		var key [16]byte
		rand.Read(key[:])
		c.setup[0].Key.K0, c.setup[0].Key.K1 = binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])
	}
	c.setup[0].Wscale = coWindowScale
	var k hostCOCoKey
	var e hostCOCoEndpoint
	entries := c.objects.CoEndpoints.Iterate()
	for entries.Next(&k, &e) {
		c.state[k] = e
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read handshake table: %w", err)
	}
	if err := c.Tune(); err != nil {
		return err
	}
	return c.attach(h)
}

// attach puts the program behind host_in, on its device.
func (c *HostCO) attach(h *Host) (err error) {
	h.tending.Lock()
	defer h.tending.Unlock()
	if c.link, err = c.attached(h); err == nil {
		h.co = c
	}
	return err
}

// attached returns the link that holds the program to the device of host_in: the pinned one, or a new one. tending is held.
func (c *HostCO) attached(h *Host) (link.Link, error) {
	pin, ifindex := filepath.Join(h.dir, coLinkPin), linkIfindex(h.links[0])
	old, err := takeOwnLink(pin, h.log, hostCOProgHostCo)
	if err != nil {
		return nil, err
	}
	if old != nil && linkIfindex(old) == ifindex {
		if err := old.Update(c.objects.HostCo); err != nil {
			old.Close()
			return nil, fmt.Errorf("replace program of %s: %w", pin, err)
		}
		return old, nil
	}
	if old != nil {
		if err := releaseServe(old); err != nil {
			return nil, fmt.Errorf("release %s: %w", pin, err)
		}
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: c.objects.HostCo, Attach: ebpf.AttachTCXIngress, Anchor: link.AfterLink(h.links[0])})
	if err != nil {
		return nil, fmt.Errorf("attach %s to interface %d: %w", ebpf.AttachTCXIngress, ifindex, err)
	}
	if err := l.Pin(pin); err != nil {
		l.Close()
		return nil, fmt.Errorf("pin link %s: %w", pin, err)
	}
	return l, nil
}

// coRecord is an endpoint as the table has it.
func coRecord(e COEndpoint) (k hostCOCoKey, r hostCOCoEndpoint, err error) {
	switch {
	case e.Key.Protocol != lb.TCP || e.Key.Port == 0 || e.Key.PortEnd != 0:
		return k, r, fmt.Errorf("endpoint %s port %d to %d: must be a single tcp port", e.Key.Protocol, e.Key.Port, e.Key.PortEnd)
	case e.Member > cookie.MaxShortID:
		return k, r, fmt.Errorf("member %d: must be at most %d", e.Member, cookie.MaxShortID)
	case e.Mint > 1 || !e.Live[e.Mint]:
		return k, r, fmt.Errorf("key id %d of new cookies: must be that of a live key", e.Mint)
	case e.MSS < 536:
		return k, r, fmt.Errorf("maximum segment size %d: must be at least 536", e.MSS)
	}
	k = hostCOCoKey{Vip: e.Key.VIP.As16(), PortBe: be16(e.Key.Port)}
	r = hostCOCoEndpoint{Vni: e.Key.VNI, Member: e.Member, Mss: e.MSS, Mint: uint32(e.Mint)}
	for i, key := range e.Keys {
		r.Keys[i].K0, r.Keys[i].K1 = binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])
		if e.Live[i] {
			r.Live |= 1 << i
			if e.Shuffled[i] {
				r.Live |= 1 << (i + int(muxCookieLiveCOOKIE_SHUFFLED_SHIFT))
			}
		}
	}
	return k, r, nil
}

// Apply implements HostCOTables.
func (c *HostCO) Apply(setup COSetup, endpoints []COEndpoint) error {
	want := make(map[hostCOCoKey]hostCOCoEndpoint, len(endpoints))
	for _, e := range endpoints {
		k, r, err := coRecord(e)
		if err != nil {
			return fmt.Errorf("handshakes of %s: %w", e.Key.VIP, err)
		}
		want[k] = r
	}
	if most := int(hostCOCoLimitLIMIT_CO_ENDPOINTS); len(want) > most {
		return fmt.Errorf("handshakes: %d endpoints: must be at most %d", len(want), most)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var allow hostCOCoAllow
	if setup.SACK {
		allow |= hostCOCoAllowCO_ALLOW_SACK
	}
	if setup.WindowScaling {
		allow |= hostCOCoAllowCO_ALLOW_WSCALE
	}
	atomic.StoreUint32(&c.setup[0].Allow, uint32(allow))
	// Those that go first: there is room for as many as there may be, not for two states.
	if err := prune(c.objects.CoEndpoints, c.state, want); err != nil {
		return fmt.Errorf("handshakes: %w", err)
	}
	if err := putAll(c.objects.CoEndpoints, c.state, want); err != nil {
		return fmt.Errorf("handshakes: %w", err)
	}
	return nil
}

// Tune implements HostCOTables.
func (c *HostCO) Tune() error {
	ahead := uint64(clockAhead())
	atomic.StoreUint64(&c.setup[0].Ahead, ahead)
	return c.host.tune(ahead)
}

// tune sets the shared clock of the host's own programs.
func (h *Host) tune(ahead uint64) error {
	if err := h.objects.HostAhead.Set(ahead); err != nil {
		return fmt.Errorf("set %s: %w", hostVarHostAhead, err)
	}
	return nil
}

// Counters implements HostCOTables.
func (c *HostCO) Counters() (map[string]uint64, error) {
	out := make(map[string]uint64, len(COReasons().All))
	for i, r := range COReasons().All {
		var perCPU []uint64
		if err := c.objects.CoReasons.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read reason %s: %w", r.Name, err)
		}
		for _, n := range perCPU {
			out[r.Name] += n
		}
	}
	return out, nil
}

// Close implements HostCOTables.
func (c *HostCO) Close() error {
	c.host.tending.Lock()
	defer c.host.tending.Unlock()
	if c.host.co == c {
		c.host.co = nil
	}
	var err error
	if c.link != nil {
		err = c.link.Close()
	}
	c.memory.close()
	return errors.Join(err, c.objects.Close())
}

// detachCO takes the program that is pinned in dir off its device and removes its pins.
func detachCO(dir string) error {
	l, _, err := openOwnLink(filepath.Join(dir, coLinkPin), hostCOProgHostCo)
	if l != nil {
		err = releaseServe(l)
	}
	if err != nil {
		return fmt.Errorf("detach %s: %w", coLinkPin, err)
	}
	for _, pin := range []string{hostCOMapCoEndpoints, hostCOMapCoReasons, hostCOMapCoSetups} {
		if err := removeOwnMap(filepath.Join(dir, pin), pin); err != nil {
			return err
		}
	}
	return nil
}
