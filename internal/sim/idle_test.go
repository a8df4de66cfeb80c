package sim

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Shunt's timestamps are accepted immediately, whatever the silence and the server's clock.
func TestPushIsTakenAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		silence := time.Duration(rapid.Int64Range(0, 20*24*3600*1000).Draw(t, "ms")) * time.Millisecond
		now, cookie := rapid.Uint32().Draw(t, "clock"), rapid.Uint16().Draw(t, "cookie")
		waited, ok := push(newStamper(EVC, cookie), now, silence, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)))
		if !ok || waited != 0 {
			t.Fatalf("after %s the push took %s, %v", silence, waited, ok)
		}
	})
}

// Whether the published encodings' pushes are accepted immediately follows from the positions of
// the two segments in periods of 65.5 s. A busy server's state is a clock of 17 bits, of which a
// client accepts half the range. The state of a connection only records that the period differs:
// then the lower half must be less.
func TestPublishedPushes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.Uint32().Draw(t, "before")
		silence := rapid.Uint32Range(0, 1<<21).Draw(t, "silence")
		after := before + silence
		for _, c := range []struct {
			encoding Encoding
			want     bool
		}{
			{PublishedBalancer, silence%(1<<17) < 1<<16},
			{PublishedServer, before>>16 == after>>16 == (after&0xffff >= before&0xffff)},
		} {
			s := newStamper(c.encoding, 0x1234)
			client := client{recent: s.answer(before)}
			if got := client.takes(s.stamp(after)); got != c.want {
				t.Fatalf("%s: from %#x to %#x: taken %v, want %v", c.encoding, before, after, got, c.want)
			}
		}
	})
}

// The published encodings deliver after a second and stall after 70, for as long as measured with a
// real client: not within 100 s.
func TestPlayIdle(t *testing.T) {
	silences := []time.Duration{time.Second, 70 * time.Second}
	rows := PlayIdle(4, silences, 500)
	if !reflect.DeepEqual(rows, PlayIdle(4, silences, 500)) {
		t.Error("the same seed gave other rows")
	}
	for _, r := range rows {
		stalls := r.Encoding != EVC && r.IdleS == 70
		if stalls != (r.AtOnce < 100) || !stalls && r.AtOnce != r.Pushes || stalls != (r.WorstS > 100) || r.Lost != 0 {
			t.Errorf("%+v", r)
		}
	}
	if len(rows) != len(Encodings)*len(silences) {
		t.Errorf("%d rows", len(rows))
	}
}

func TestSilences(t *testing.T) {
	s := Silences(30, 70*time.Second, time.Second)
	if len(s) != 31 || !slices.IsSorted(s) || s[0] != time.Second || s[30] != 1000*time.Second || !slices.Contains(s, 70*time.Second) {
		t.Errorf("%v", s)
	}
}
