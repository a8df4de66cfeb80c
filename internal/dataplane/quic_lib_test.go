package dataplane

import (
	"crypto/aes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/cid"
)

// quicRun is bpf/unit/quic.bpf.c, loaded.
type quicRun struct {
	t       testing.TB
	objects quicObjects
	sets    []muxQuicSet
}

func newQUICRun(t testing.TB) *quicRun {
	q := &quicRun{t: t}
	if err := loadQuicObjects(&q.objects, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	mem := &muxMemory{}
	must(t, mapTable(mem, q.objects.UnitQuicSets, &q.sets))
	t.Cleanup(func() {
		mem.close()
		q.objects.Close()
	})
	return q
}

func (q *quicRun) run(p *ebpf.Program, in quicQuicIn, options *ebpf.RunOptions) (out quicQuicOut) {
	q.t.Helper()
	must(q.t, q.objects.In.Set(in))
	must(q.t, q.objects.Out.Set(quicQuicOut{}))
	if _, err := p.Run(options); err != nil {
		q.t.Fatal(err)
	}
	must(q.t, q.objects.Out.Get(&out))
	return out
}

// blockOf is a block as the programs load it.
func blockOf(b []byte) (w [4]uint32) {
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return w
}

// randomSet are configurations of any format.
func randomSet(r *rand.Rand) MuxQUIC {
	s := MuxQUIC{Format: cid.Format(1 + r.IntN(4))}
	if s.Format == cid.MSQUIC || s.Format == cid.MVFST {
		return s
	}
	for i, id := range r.Perm(cid.Unroutable)[:r.IntN(cid.Unroutable+1)] {
		c := cid.Config{ID: uint8(id), ServerID: uint8(2 + r.IntN(14))}
		c.Nonce = uint8(4 + r.IntN(19-int(c.ServerID)-3))
		if i%3 == 0 {
			c.ServerID, c.Nonce = 3, 13
		}
		if s.Format == cid.QUICLB {
			for j := range c.Key {
				c.Key[j] = byte(r.Uint32())
			}
		}
		s.Configs = append(s.Configs, c)
	}
	return s
}

// TestAESEqualsGo: blocks that crypto/aes encrypts and decrypts.
func TestAESEqualsGo(t *testing.T) {
	q, r := newQUICRun(t), seeded(t)
	for range 2000 {
		var key, block [16]byte
		for i := range key {
			key[i], block[i] = byte(r.Uint32()), byte(r.Uint32())
		}
		c, err := aes.NewCipher(key[:])
		must(t, err)
		var sealed, open [16]byte
		c.Encrypt(sealed[:], block[:])
		c.Decrypt(open[:], block[:])
		var in quicQuicIn
		in.Block.W = blockOf(block[:])
		in.Encryption.Keys, in.Decryption.Keys = cid.Encryption(key), cid.Decryption(key)
		out := q.run(q.objects.Quic, in, runOptions(make([]byte, 14), xdpContext{DataEnd: 14}))
		if out.Encrypted.W != blockOf(sealed[:]) || out.First != uint32(binary.LittleEndian.Uint16(open[:])) {
			t.Fatalf("key %x, block %x: encrypted %x, expected %x; decrypted %x, expected %x", key, block, out.Encrypted.W, sealed, out.First, open[:2])
		}
	}
}

// idOf is a connection id, cut or not, as the programs get it.
func idOf(id []byte) (in quicQuicIn) {
	var b [24]byte
	copy(b[:], id)
	in.Cid.Lo, in.Cid.Mid, in.Cid.Hi = binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint32(b[16:])
	in.Length = uint32(len(id))
	return in
}

// quicMember is what a program should say of a connection id.
func quicMember(s MuxQUIC, id []byte) uint32 {
	if member, ok := s.Member(id); ok {
		return uint32(member)
	}
	return 0xffffffff
}

// TestConnectionIDsEqualGo runs bpf/lib/quic.h and internal/cid on random ids of random sets, and reads the sets back.
func TestConnectionIDsEqualGo(t *testing.T) {
	q, r := newQUICRun(t), seeded(t)
	named := 0
	for range 400 {
		set := randomSet(r)
		must(t, set.Check())
		q.sets[0] = quicSet(&set)
		again := quicOf(&q.sets[0])
		for range 20 {
			id := make([]byte, r.IntN(cid.MaxLength+1))
			for i := range id {
				id[i] = byte(r.Uint32())
			}
			want := quicMember(set, id)
			if want != 0xffffffff {
				named++
			}
			if out := q.run(q.objects.Quic, idOf(id), runOptions(make([]byte, 14), xdpContext{DataEnd: 14})); out.Member != want {
				t.Fatalf("%+v: id %x: member %#x, Go says %#x", set, id, out.Member, want)
			}
			if got := quicMember(*again, id); got != want {
				t.Fatalf("%+v, read back %+v: id %x: member %#x, expected %#x", set, again, id, got, want)
			}
		}
	}
	if named < 1000 {
		t.Errorf("only %d ids named a member", named)
	}
}

// TestConnectionIDVectors: the draft's ids (internal/cid has them with their server ids) in C.
func TestConnectionIDVectors(t *testing.T) {
	q := newQUICRun(t)
	key := [16]byte{0x8f, 0x95, 0xf0, 0x92, 0x45, 0x76, 0x5f, 0x80, 0x25, 0x69, 0x34, 0xe5, 0x0c, 0x66, 0x20, 0x7f}
	set := MuxQUIC{Format: cid.QUICLB, Configs: []cid.Config{
		{ID: 0, Key: key, ServerID: 3, Nonce: 4}, {ID: 1, Key: key, ServerID: 10, Nonce: 5}, {ID: 2, Key: key, ServerID: 8, Nonce: 8},
		{ID: 3, Key: key, ServerID: 9, Nonce: 9},
	}}
	q.sets[0] = quicSet(&set)
	for _, s := range []string{
		"0720b1d07b359d3c", "2fcc381bc74cb4fbad2823a3d1f8fed2", "504dd2d05a7b0de9b2b9907afb5ecf8cc3", "725779c9cc86beb3a3a4a3ca96fce4bfe0cdbc",
	} {
		id, err := hex.DecodeString(s)
		must(t, err)
		if out := q.run(q.objects.Quic, idOf(id), runOptions(make([]byte, 14), xdpContext{DataEnd: 14})); out.Member != 0xed7 {
			t.Errorf("%s: member %#x, expected 0xed7", s, out.Member)
		}
	}
}

// checkDatagram compares what C and Go read of a datagram, of which so many octets are in the frame's first piece.
func (q *quicRun) checkDatagram(set MuxQUIC, datagram []byte, linear int) {
	q.t.Helper()
	frame := append(make([]byte, 14), datagram...)
	out := q.run(q.objects.QuicFrame, quicQuicIn{}, runOptions(frame, xdpContext{DataEnd: uint32(14 + linear)}))
	h, ok := cid.Parse(datagram)
	if out.IsLong != 0 != h.Long || out.ReadMember != quicMember(set, h.DCID) || int(out.Length) != len(h.DCID) {
		q.t.Fatalf("datagram %x, %d in one piece: %+v, Go says %+v", datagram, linear, out, h)
	}
	switch {
	case !ok && !h.Long && out.Read != 0:
		q.t.Fatalf("datagram %x: read, Go says that it cannot be", datagram)
	case ok && out.Read == 0:
		q.t.Fatalf("datagram %x: cannot be read, Go says %+v", datagram, h)
	case ok && h.Long && int(out.Source) != 14+6+len(h.DCID):
		q.t.Fatalf("datagram %x: source at %d, Go says %+v", datagram, out.Source, h)
	}
}

// FuzzQUICHeader compares C and Go on datagrams that the fuzzer makes.
func FuzzQUICHeader(f *testing.F) {
	for _, s := range []string{
		"", "40", "400720b1d07b359d3c", "c000000001080720b1d07b359d3c00", "c000000001080720b1d07b359d3c0401020304aabb", "c0000000010807", "80",
		"c000000001150102030405060708090a0b0c0d0e0f10111213141500", "40504dd2d05a7b0de9b2b9907afb5ecf8cc3aabbccddeeff00112233",
	} {
		b, err := hex.DecodeString(s)
		must(f, err)
		f.Add(b, uint8(20), uint64(1))
	}
	q := newQUICRun(f)
	f.Fuzz(func(t *testing.T, datagram []byte, linear uint8, seed uint64) {
		if len(datagram) > 1500 {
			return
		}
		set := randomSet(rand.New(rand.NewPCG(seed, 1)))
		one := *q
		one.t = t
		one.sets[0] = quicSet(&set)
		one.checkDatagram(set, datagram, min(int(linear), len(datagram)))
	})
}

// TestDatagramsEqualGo: random ones, mostly with headers that could be.
func TestDatagramsEqualGo(t *testing.T) {
	q, r := newQUICRun(t), seeded(t)
	for range 6000 {
		set := randomSet(r)
		q.sets[0] = quicSet(&set)
		datagram := randomDatagram(r)
		q.checkDatagram(set, datagram, r.IntN(len(datagram)+1))
	}
}

// randomDatagram has a long or a short header, cut now and then.
func randomDatagram(r *rand.Rand) []byte {
	b := make([]byte, 1+r.IntN(60))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	if b[0]&0x80 != 0 && len(b) > 6 && r.IntN(8) != 0 {
		b[5] = byte(r.IntN(21))
		if at := 6 + int(b[5]); at < len(b) {
			b[at] = byte(r.IntN(21))
		}
	}
	if r.IntN(6) == 0 {
		b = b[:r.IntN(len(b)+1)]
	}
	return b
}
