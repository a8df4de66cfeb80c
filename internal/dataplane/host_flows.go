package dataplane

import (
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/ring"
)

// flowTable is the host's flow table in this process's memory (bpf/abi/host_flow.h, bpf/lib/tag.h). Programs take part in it at any time: a
// tag is changed by compare and swap only.
type flowTable struct {
	memory  muxMemory
	tags    []hostFlowTags
	records []hostFlowRecord
	clocks  []hostEvc // beside the records; none in a former table without
	addrs   addrTable
	cookies hostCookieTable
	binding []hostBindingFlow
	counts  []hostFlowCount
	shares  []uint64 // marks of VIPs over their share, by number; of the attached programs alone
	setup   *hostFlowSetup
	key     ring.Key
}

// Sizes of the flow table, in flows.
const (
	DefaultHostFlows = uint32(1 << 20)
	MinHostFlows     = uint32(hostHostLimitLIMIT_HOST_FLOWS_MIN)
	MaxHostFlows     = uint32(hostHostLimitLIMIT_HOST_FLOWS)
)

const (
	flowWays     = int(muxLimitLIMIT_FLOW_BUCKET)
	maxUntrusted = int(muxLimitLIMIT_FLOW_UNTRUSTED)
	maxTagIdle   = uint32(hostFlowTagFLOW_TAG_IDLE_MAX)
	tagUntilMask = uint64(1)<<hostFlowTagFLOW_TAG_UNTIL_BITS - 1
	tagBusy      = flowTag(1) << hostFlowTagFLOW_TAG_BUSY_SHIFT
)

// flowTag is a tag (enum flow_tag).
type flowTag uint64

func (t flowTag) class() FlowClass    { return FlowClass(t >> hostFlowTagFLOW_TAG_CLASS_SHIFT & 3) }
func (t flowTag) fingerprint() uint32 { return uint32(t >> hostFlowTagFLOW_TAG_FINGERPRINT_SHIFT) }

// live tells whether there is a flow whose time is not over.
func (t flowTag) live(tick uint64) bool {
	return t.class() != 0 && (uint64(t)-tick)&tagUntilMask <= uint64(maxTagIdle)
}

// newFlowTag is the tag of a written record.
func newFlowTag(hash uint64, generation uint8, class FlowClass, until uint64) flowTag {
	return flowTag(hash>>hostFlowTagFLOW_TAG_FINGERPRINT_SHIFT<<hostFlowTagFLOW_TAG_FINGERPRINT_SHIFT |
		uint64(generation)<<hostFlowTagFLOW_TAG_GENERATION_SHIFT | uint64(class)<<hostFlowTagFLOW_TAG_CLASS_SHIFT | until&tagUntilMask)
}

// tagTick is the tick of a time of CLOCK_MONOTONIC.
func tagTick(now time.Duration) uint64 { return uint64(now) >> hostFlowTagFLOW_TAG_TICK_SHIFT }

// idleTicks is an idle time in ticks, rounded up.
func idleTicks(d time.Duration) uint32 {
	return uint32(min((uint64(d)+1<<hostFlowTagFLOW_TAG_TICK_SHIFT-1)>>hostFlowTagFLOW_TAG_TICK_SHIFT, uint64(maxTagIdle/2)))
}

// monotonic is CLOCK_MONOTONIC.
func monotonic() time.Duration {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) //nolint:errcheck // the clock is always there
	return time.Duration(t.Nano())
}

// mapFlows maps the tables; without maps of bindings and addresses, as of one that is left, nil ones.
func mapFlows(o *hostMaps) (*flowTable, error) {
	t := &flowTable{}
	var setups []hostFlowSetup
	var addrs [][16]byte
	var keys []hostHostCookieKeys
	for _, err := range []error{
		mapTable(&t.memory, o.FlowTags, &t.tags), mapTable(&t.memory, o.FlowRecords, &t.records),
		mapTable(&t.memory, o.FlowAddrs, &addrs), mapTable(&t.memory, o.BindingFlows, &t.binding),
		mapTable(&t.memory, o.FlowSetups, &setups), mapTable(&t.memory, o.FlowCounts, &t.counts),
		mapTable(&t.memory, o.FlowCookies, &t.clocks), mapTable(&t.memory, o.CookieKeys, &keys),
		mapTable(&t.memory, o.FlowShares, &t.shares),
	} {
		if err != nil {
			t.close()
			return nil, err
		}
	}
	t.setup = &setups[0]
	t.key = ring.Key{K0: t.setup.Key.K0, K1: t.setup.Key.K1}
	t.addrs = readAddrs(addrs)
	t.cookies = readCookies(keys)
	return t, nil
}

// mapFormer maps the tags, records and clocks of a table of another size; clocks may be nil.
func (t *flowTable) mapFormer(tags, records, clocks *ebpf.Map) (*flowTable, error) {
	old := &flowTable{key: t.key}
	if err := mapTable(&old.memory, tags, &old.tags); err != nil {
		return nil, err
	}
	err := mapTable(&old.memory, records, &old.records)
	if err == nil {
		err = mapIfThere(&old.memory, clocks, &old.clocks)
	}
	if err != nil {
		old.close()
		return nil, err
	}
	return old, nil
}

func (t *flowTable) close() { t.memory.close() }

// hash is what a record is found by.
func (t *flowTable) hash(r *hostFlowRecord) uint64 {
	client, dip := r.Client, t.addrs.cells[r.Dip]
	if r.Kind == uint8(hostFlowKindFLOW_HAIRPIN) {
		client = t.addrs.cells[r.Vip] // as the server sees it
	}
	return ring.TableHash(t.key, r.Scope>>8, netip.AddrFrom16(client).Unmap(), netip.AddrFrom16(dip).Unmap(), uint8(r.Scope), be16(r.PeerPortBe), be16(r.DipPortBe))
}

// bucket is the first or second bucket of a hash (tag_bucket).
func (t *flowTable) bucket(hash uint64, second bool) uint32 {
	b := uint32(hash)
	if second {
		b ^= uint32(hash>>hostFlowTagFLOW_TAG_FINGERPRINT_SHIFT)*0x9e3779b1>>8 | 1
	}
	return b & uint32(len(t.tags)-1)
}

// flowName is the key of a record.
type flowName struct {
	client            [16]byte
	dip, scope        uint32
	dipPort, peerPort uint16
	kind              uint8
}

func nameOf(r *hostFlowRecord) flowName {
	return flowName{r.Client, r.Dip, r.Scope, r.DipPortBe, r.PeerPortBe, r.Kind}
}

// find returns the place of the live flow that has the name of r.
func (t *flowTable) find(r *hostFlowRecord, tick uint64) (place int, tag flowTag, ok bool) {
	hash := t.hash(r)
	for _, second := range []bool{false, true} {
		b := int(t.bucket(hash, second))
		for way := range flowWays {
			tag := flowTag(load(&t.tags[b].Tags[way]))
			if tag.live(tick) && tag&tagBusy == 0 && tag.fingerprint() == uint32(hash>>32) && nameOf(&t.records[b*flowWays+way]) == nameOf(r) {
				return b*flowWays + way, tag, true
			}
		}
	}
	return 0, 0, false
}

// insert brings in a flow that another table had, and its clock, unless one of its name is there. False: there is no room.
func (t *flowTable) insert(r hostFlowRecord, clock hostEvc, class FlowClass, until, tick uint64) bool {
	if _, _, there := t.find(&r, tick); there {
		return true
	}
	hash := t.hash(&r)
	for _, second := range []bool{false, true} {
		b := int(t.bucket(hash, second))
		for i := range flowWays {
			way := (int(hash>>28) + i) % flowWays
			word := &t.tags[b].Tags[way]
			before := flowTag(load(word))
			if before.live(tick) {
				continue
			}
			generation := uint8(before>>hostFlowTagFLOW_TAG_GENERATION_SHIFT) + 1
			claim := newFlowTag(hash, generation, FlowTrusted, tick+uint64(maxTagIdle/2)) | tagBusy
			if !atomic.CompareAndSwapUint64(word, uint64(before), uint64(claim)) {
				continue
			}
			t.records[b*flowWays+way] = r
			if r.Stamped != 0 {
				t.clocks[b*flowWays+way] = clockOf(clock, generation)
			}
			store(word, uint64(newFlowTag(hash, generation, class, until)))
			return true
		}
	}
	return false
}

// clock is that of a record of the table; an empty one where there are none.
func (t *flowTable) clock(r *hostFlowRecord) hostEvc {
	if len(t.clocks) == 0 {
		return hostEvc{}
	}
	return t.clocks[(uintptr(unsafe.Pointer(r))-uintptr(unsafe.Pointer(&t.records[0])))/unsafe.Sizeof(*r)]
}

// all calls f for every live flow.
func (t *flowTable) all(tick uint64, f func(tag flowTag, r *hostFlowRecord)) {
	for b := range t.tags {
		for way := range flowWays {
			tag := flowTag(load(&t.tags[b].Tags[way]))
			if tag.live(tick) && tag&tagBusy == 0 {
				f(tag, &t.records[b*flowWays+way])
			}
		}
	}
}
