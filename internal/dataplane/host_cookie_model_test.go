package dataplane

import (
	"math/rand/v2"
	"testing"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// modelled is a flow whose every stamp and echo is compared with internal/cookie's.
type modelled struct {
	f      *bakedFlow
	r      *rand.Rand
	state  cookie.EVC
	now    uint32
	want   uint16
	stamps []uint32
	silent bool // the server sent nothing after its SYN-ACK
}

func newModelled(f *bakedFlow, r *rand.Rand) *modelled {
	return &modelled{f: f, r: r, now: r.Uint32(), want: f.cookie(1)}
}

// answer is a SYN-ACK: one that repeats the last one, unless something else came in between.
func (m *modelled) answer() {
	m.f.e.t.Helper()
	w := m.state.Answer(m.f.n, m.now, m.want, m.silent)
	m.silent = true
	m.f.answer(m.now, w)
	m.stamps = append(m.stamps, w)
}

func (m *modelled) open() {
	m.f.e.t.Helper()
	m.f.syn()
	m.answer()
	m.ack()
}

func (m *modelled) data() {
	m.f.e.t.Helper()
	m.silent = false
	t := m.now - m.r.Uint32N(2)
	w := m.state.Stamp(m.f.n, t, m.want)
	m.f.data(t, w)
	m.stamps = append(m.stamps, w)
}

// ack echoes what was sent last, or shortly before.
func (m *modelled) ack() {
	m.f.e.t.Helper()
	m.echo(m.stamps[max(0, len(m.stamps)-1-m.r.IntN(3))])
}

func (m *modelled) echo(w uint32) {
	m.f.e.t.Helper()
	t, ours := m.state.Echo(m.f.n, w)
	if !ours && (uint16(m.f.n.Cookie(w)) == m.f.cookie(1) || uint16(m.f.n.Cookie(w)) == m.f.cookie(2)) && m.f.n.Cookie(w) < 1<<16 {
		m.state.Rebuild(m.f.n, w)
		ours = true
	}
	if !ours {
		t = w
	}
	m.f.ack(w, t)
}

// forget empties the clock, as a flow's that is new in its place.
func (m *modelled) forget() {
	r := flowOf(m.f.e, m.f.client, m.f.dip, m.f.server)
	place, _, ok := m.f.e.host.flows.find(&r, m.f.e.tick())
	if !ok {
		m.f.e.t.Fatal("no flow")
	}
	m.f.e.host.flows.records[place].Stamped = 0
	m.f.e.host.flows.clocks[place].Word = 0
	m.state = cookie.EVC{}
}

// TestHostCookieModel: T2, T3, T8, T9 and T15 on the host. Over random traces with loss, silence, repeated SYN-ACKs, lost states and keys that change, what the
// programs make of every packet is what the model says; the model's properties are shown in internal/cookie.
func TestHostCookieModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, bits := range []uint32{11, uint32(cookie.HostBits)} {
		e := newHostEnv(t)
		e.timeBits = bits
		must(t, e.host.Close())
		e.open()
		e.quiet()
		bindings := []plan.Binding{baked(bind(lb.TCP, vip4, dip4, dip4, true)), baked(bind(lb.TCP, vip6, dip6, dip6, true))}
		rotate := func(epochs ...uint32) {
			e.applyCookies([]plan.CookieKeys{bakedKeys(vip4, epochs...), bakedKeys(vip6, epochs...)}, bindings...)
		}
		rotate(1)
		bakedBoth(t, e, uint16(41000+bits), func(t *testing.T, f *bakedFlow) {
			f.n = cookie.TimeBits(bits)
			r := rand.New(rand.NewPCG(seed, uint64(bits)))
			m := newModelled(f, r)
			rotate(1)
			m.open()
			before := e.reasons(nil)
			for range 1500 {
				m.now += [...]uint32{0, 1, 20, f.n.Half() / 3, f.n.Half() + 3, 20 * f.n.Half()}[min(r.IntN(8), r.IntN(8), 5)]
				switch x := r.IntN(100); {
				case x < 2:
					m.answer()
				case x < 4:
					epochs := [][]uint32{{1, 2}, {2, 1}}[r.IntN(2)]
					m.want = f.cookie(epochs[1])
					rotate(epochs...)
				case x < 6:
					m.forget()
				case x < 50:
					m.data()
				case x < 60:
					for range 1 + r.IntN(20) { // nothing arrives
						m.now += 200
						m.data()
					}
				case x < 63:
					m.echo(r.Uint32() | 1)
				default:
					m.ack()
				}
			}
			got := e.reasons(before)
			for _, reason := range []string{"cookie_begun", "cookie_rebuilt", "cookie_reminted", "cookie_foreign"} {
				if got[reason] == 0 {
					t.Errorf("%s was never counted: %v", reason, got)
				}
			}
			if got["cookie_contended"] != 0 {
				t.Errorf("reasons %v", got)
			}
		})
	}
}
