package dataplane

import (
	"math/rand/v2"
	"testing"

	"github.com/shuntlb/shunt/internal/cookie"
)

// evcRun is bpf/unit/evc.bpf.c, loaded.
type evcRun struct {
	t       *testing.T
	objects evcObjects
}

// run takes up to 512 steps from the state that the last ones left.
func (u *evcRun) run(n cookie.TimeBits, steps []evcEvcUnit) []evcEvcUnit {
	u.t.Helper()
	var all [512]evcEvcUnit
	copy(all[:], steps)
	must(u.t, u.objects.EvcUnitBits.Set(uint32(n)))
	must(u.t, u.objects.EvcUnitCount.Set(uint32(len(steps))))
	must(u.t, u.objects.EvcUnitGeneration.Set(uint8(0xa5)))
	must(u.t, u.objects.EvcUnitSteps.Set(all))
	if _, err := u.objects.Evc.Run(runOptions(make([]byte, 14), xdpContext{DataEnd: 14})); err != nil {
		u.t.Fatal(err)
	}
	must(u.t, u.objects.EvcUnitSteps.Get(&all))
	return all[:len(steps)]
}

// evcOf is the state that the C words are.
func evcOf(e evcEvc) cookie.EVC {
	bit := func(flag evcEvcFlag) bool { return e.Word&uint32(flag) != 0 }
	return cookie.EVC{
		Off: e.Off, OffPrev: e.OffPrev, VSw: e.V_sw, VSwPrev: e.V_swPrev, VEcho: e.V_echo, VLast: e.V_last,
		Cookie: uint16(e.Word >> 16), Former: uint16(e.Lock >> 16), Kind: evcKinds[e.Word&3],
		Minting: bit(evcEvcFlagEVC_MINTING), Unsure: bit(evcEvcFlagEVC_UNSURE), Twice: bit(evcEvcFlagEVC_TWICE), TwicePrev: bit(evcEvcFlagEVC_TWICE_PREV),
	}
}

var evcKinds = [4]cookie.EVCKind{cookie.EVCEmpty, cookie.EVCOpening, cookie.EVCLost, cookie.EVCLive}

// evcTrace draws steps as a host takes them: times go on, echoes are of what was sent, mostly. The Go state follows.
type evcTrace struct {
	r       *rand.Rand
	n       cookie.TimeBits
	state   cookie.EVC
	now     uint32
	want    uint16
	stamped []uint32
}

// step draws a step, and what Go makes of it.
func (tr *evcTrace) step() evcEvcUnit {
	half := tr.n.Half()
	if tr.r.IntN(3) == 0 {
		tr.now += [...]uint32{1, half / 4, half, 5 * half}[tr.r.IntN(4)] + tr.r.Uint32N(3)
	}
	if tr.r.IntN(30) == 0 {
		tr.want = tr.want&0x8000 ^ 0x8000 | uint16(tr.r.Uint32())&0x7fff
	}
	if tr.r.IntN(200) == 0 {
		tr.want = 0
	}
	s := evcEvcUnit{In: tr.now - tr.r.Uint32N(2), Want: uint32(tr.want), Ours: 1}
	switch x := tr.r.IntN(100); {
	case x < 3:
		again := tr.r.IntN(2)
		s.Step, s.Want = 1, s.Want|uint32(again)<<16
		s.Out = tr.state.Answer(tr.n, s.In, tr.want, again == 1)
		tr.stamped = append(tr.stamped, s.Out)
	case x < 50:
		s.Step = 2
		s.Out = tr.state.Stamp(tr.n, s.In, tr.want)
		tr.stamped = append(tr.stamped, s.Out)
	case x < 98 && len(tr.stamped) > 0:
		s.Step, s.In = 3, tr.stamped[max(0, len(tr.stamped)-1-tr.r.IntN(4))]
		if tr.r.IntN(50) == 0 {
			s.In = tr.r.Uint32() | 1
		}
		out, ours := tr.state.Echo(tr.n, s.In)
		if s.Out, s.Ours = out, 0; ours {
			s.Ours = 1
		}
	case x < 99 && len(tr.stamped) > 0:
		s.Step, s.In = 4, tr.stamped[len(tr.stamped)-1]
		if tr.n.Cookie(s.In) > 0xffff {
			s.In = tr.n.Place(tr.now, uint32(tr.want))
		}
		tr.state.Rebuild(tr.n, s.In)
	default:
		s.Step = 5
		tr.state = cookie.EVC{}
	}
	return s
}

// TestEVCTwins: over random traces C and Go say the same and are in the same state after each step.
func TestEVCTwins(t *testing.T) {
	u := &evcRun{t: t}
	if err := loadEvcObjects(&u.objects, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	defer u.objects.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	kinds, minting, unsure, steady := map[cookie.EVCKind]int{}, 0, 0, [3]int{}
	for range 400 {
		tr := &evcTrace{r: r, n: cookie.TimeBits(8 + r.IntN(9)), now: r.Uint32(), want: uint16(r.Uint32())}
		steps := []evcEvcUnit{{Step: 5, Ours: 1}}
		states := []cookie.EVC{{}}
		for len(steps) < 512 {
			steps, states = append(steps, tr.step()), append(states, tr.state)
			kinds[tr.state.Kind]++
			if tr.state.Minting {
				minting++
			}
			if tr.state.Unsure {
				unsure++
			}
		}
		for i, got := range u.run(tr.n, steps) {
			want := steps[i]
			if steady[got.Steady]++; got.Steady == 2 {
				t.Fatalf("n %d, step %d %+v: the short way gives something else, before %+v", tr.n, i, got, states[max(i-1, 0)])
			}
			after := evcOf(got.After)
			if got.Out != want.Out && want.Step < 4 || got.Ours != want.Ours || after != states[i] {
				t.Fatalf("n %d, step %d %+v: out %#x, ours %d\n%+v, want out %#x, ours %d\n%+v, before\n%+v", tr.n, i, steps[i], got.Out, got.Ours, after, want.Out, want.Ours, states[i], states[max(i-1, 0)])
			}
			if kind := states[i].Kind; kind != cookie.EVCEmpty && got.After.Word>>8&0xff != 0xa5 {
				t.Fatalf("step %d: generation %#x", i, got.After.Word>>8&0xff)
			}
		}
	}
	if len(kinds) != 4 || minting == 0 || unsure == 0 || steady[1] < 10_000 {
		t.Errorf("not all states were seen: %v, minting %d, unsure %d, steady %d", kinds, minting, unsure, steady)
	}
}
