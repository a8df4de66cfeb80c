package dataplane

import (
	"testing"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"
)

// bucketModel is a token bucket written down naively: tokens as parts of the time of one.
type bucketModel struct{ tokens, interval, window, last uint64 }

func (b *bucketModel) take(now uint64) bool {
	b.tokens = min(b.tokens+(now-b.last)<<bucketShift, b.window)
	b.last = now
	if b.tokens < b.interval {
		return false
	}
	b.tokens -= b.interval
	return true
}

type bucketRun struct {
	t       testing.TB
	objects bucketObjects
}

func newBucketRun(t testing.TB) *bucketRun {
	u := &bucketRun{t: t}
	if err := loadBucketObjects(&u.objects, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { u.objects.Close() })
	return u
}

func (u *bucketRun) begin(interval, window uint64) {
	for _, err := range []error{
		u.objects.BucketWord.Set(uint64(0)), u.objects.BucketTaken.Set(uint64(0)),
		u.objects.BucketInterval.Set(interval), u.objects.BucketWindow.Set(window),
	} {
		if err != nil {
			u.t.Fatal(err)
		}
	}
}

// take asks for n tokens at a time; it returns how many have been given since begin.
func (u *bucketRun) take(now uint64, n int) (taken uint64) {
	if err := u.objects.BucketNow.Set(now); err != nil {
		u.t.Fatal(err)
	}
	// A loop in the program: the test runner's own begins anew when a signal comes.
	for ; n > 0; n -= 1024 {
		if err := u.objects.BucketAsked.Set(uint32(min(n, 1024))); err != nil {
			u.t.Fatal(err)
		}
		if _, err := u.objects.Bucket.Run(&ebpf.RunOptions{Data: make([]byte, 14)}); err != nil {
			u.t.Fatal(err)
		}
	}
	if err := u.objects.BucketTaken.Get(&taken); err != nil {
		u.t.Fatal(err)
	}
	return taken
}

func TestBucketEqualsModel(t *testing.T) {
	u := newBucketRun(t)
	rapid.Check(t, func(r *rapid.T) {
		rate, ticks := rapid.Uint64Range(1, 5000).Draw(r, "rate"), rapid.SampledFrom([]uint64{100, 250, 1000}).Draw(r, "ticks")
		interval, window := bucketOf(rate, ticks)
		now := rapid.Uint64Range(4<<30, 8<<30).Draw(r, "now")
		model := bucketModel{window, interval, window, now}
		u.begin(interval, window)
		var given uint64
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			now += rapid.SampledFrom([]uint64{0, 1, 2, 7, 50, 400, 1 << 20}).Draw(r, "later")
			asked := rapid.IntRange(1, 700).Draw(r, "asked")
			for range asked {
				if model.take(now) {
					given++
				}
			}
			if got := u.take(now, asked); got != given {
				r.Fatalf("rate %d, %d ticks a second, at %d: %d tokens, the model gave %d", rate, ticks, now, got, given)
			}
		}
	})
}

// TestBucketKeepsItsRate: over ten seconds of asking at every tick it gives the rate, and a full bucket before.
func TestBucketKeepsItsRate(t *testing.T) {
	u := newBucketRun(t)
	for _, rate := range []uint64{1, 40, 1000, 50_000} {
		interval, window := bucketOf(rate, 250)
		u.begin(interval, window)
		var got uint64
		const begin = 5 << 30
		for tick := uint64(0); tick <= 2500; tick += 25 { // a tenth of a second: the bucket never overflows
			asked := int(max(rate/10, bucketLeast)) + 1
			got = u.take(begin+tick, asked)
		}
		want := max(rate/10, bucketLeast) + 10*rate
		if got < want-want/100-1 || got > want+want/100+1 {
			t.Errorf("rate %d: %d tokens in ten seconds, expected %d", rate, got, want)
		}
	}
}
