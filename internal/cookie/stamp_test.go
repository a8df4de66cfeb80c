package cookie

import (
	"testing"

	"pgregory.net/rapid"
)

// stampVectors were computed with an independent model of protocol section 1.3.
var stampVectors = []struct {
	n                         TimeBits
	time, cookie, stamp, part uint32
}{
	{8, 0x0, 0x1, 0x80, 0x0}, {8, 0x12345678, 0xabc123, 0x55e091f8, 0x78}, {8, 0xffffffff, 0xffffff, 0xffffffff, 0xff},
	{8, 0x80000080, 0x5, 0x80000280, 0x80}, {9, 0x12345678, 0x2bc123, 0x2bc12378, 0x78}, {11, 0x12345678, 0xbc123, 0xaf048e78, 0x678},
	{12, 0x12345678, 0xbc123, 0x5e091e78, 0x678}, {14, 0x12345678, 0x3c123, 0x78247678, 0x1678}, {14, 0x80002000, 0x5, 0x8000a000, 0x2000},
	{16, 0x0, 0x1, 0x8000, 0x0}, {16, 0x12345678, 0xc123, 0x6091d678, 0x5678}, {16, 0xffffffff, 0xffff, 0xffffffff, 0xffff},
	{16, 0x80008000, 0x5, 0x80028000, 0x8000}, {17, 0x12345678, 0x4123, 0x41235678, 0x5678}, {20, 0x0, 0x1, 0x80000, 0x0},
	{20, 0x12345678, 0x123, 0x91c5678, 0x45678}, {20, 0xffffffff, 0xfff, 0xffffffff, 0xfffff}, {20, 0x80080000, 0x5, 0x80280000, 0x80000},
}

func TestStampVectors(t *testing.T) {
	for _, v := range stampVectors {
		if got := v.n.Place(v.time, v.cookie); got != v.stamp {
			t.Errorf("n %d: cookie %#x at %#x is %#x, want %#x", v.n, v.cookie, v.time, got, v.stamp)
		}
		if v.n.Unplace(v.stamp) != v.part || v.n.Cookie(v.stamp) != v.cookie {
			t.Errorf("n %d: %#x reads as %#x at %#x", v.n, v.stamp, v.n.Cookie(v.stamp), v.n.Unplace(v.stamp))
		}
	}
}

func drawStamp(t *rapid.T) (n TimeBits, time, cookie uint32) {
	n = TimeBits(rapid.Uint8Range(uint8(MinTimeBits), uint8(MaxTimeBits)).Draw(t, "n"))
	return n, rapid.Uint32().Draw(t, "time"), rapid.Uint32Max(1<<(32-n)-1).Draw(t, "cookie")
}

// TestStampComesBack: time and cookie can be read back from a stamp, and no stamp is 0.
func TestStampComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, time, cookie := drawStamp(t)
		if rapid.Bool().Draw(t, "nothing") {
			time, cookie = time>>n<<n, 0
		}
		stamp, part := n.Place(time, cookie), time&(2*n.Half()-1)
		if part == 0 && cookie == 0 {
			part = 1
		}
		if stamp == 0 || n.Unplace(stamp) != part || n.Cookie(stamp) != cookie {
			t.Fatalf("cookie %#x at %#x is %#x, which reads as %#x at %#x", cookie, time, stamp, n.Cookie(stamp), n.Unplace(stamp))
		}
	})
}

// TestStampOrder is Lemma 1 (protocol section 1.2): of two stamps with one cookie, RFC 7323's
// comparison considers the second one later if it is less than Half ahead, and older from there to
// twice that.
func TestStampOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, time, cookie := drawStamp(t)
		ahead := rapid.Uint32Max(2*n.Half()-1).Draw(t, "ahead")
		if cookie == 0 {
			cookie = 1 // a stamp that became 1 is one tick late
		}
		newer := int32(n.Place(time+ahead, cookie)-n.Place(time, cookie)) >= 0
		if newer != (ahead < n.Half()) {
			t.Fatalf("n %d, cookie %#x: %#x + %#x reads as newer: %v", n, cookie, time, ahead, newer)
		}
	})
}
