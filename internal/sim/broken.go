package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// Step is what became of a story's connections by one change, or when hosts forgot an earlier one.
type Step struct {
	Change  int // from 1
	At      time.Duration
	Servers int // that take connections from now on
	Begun   int // connections that began until now
	Open    int // of them, those that have not ended
	Broken  int // of those, the ones that break now: a packet of theirs reaches a server that is not theirs
}

// Outlive plays a story with connections that speak all the time, ordered by their beginning, and tells step by step which of them break under a rule. A
// connection breaks once. No mux remembers any: that is what is asked. chooser chooses which servers go; equal ones choose equally.
func (s Story) Outlive(rule Rule, flows []Flow, chooser *rand.Rand) ([]Step, error) {
	eras, err := s.play(chooser)
	if err != nil {
		return nil, err
	}
	way := wayOf(rule, len(eras))
	conns, era := make([]connection, len(flows)), 0
	for i := range flows {
		for era+1 < len(eras) && eras[era+1].from <= flows[i].Begin {
			era++
		}
		conns[i] = connection{Flow: &flows[i], hash: flows[i].Hash()}
		way.settle(era, &eras[era], i, &conns[i])
	}
	var out []Step
	for n := 1; n < len(eras); n++ {
		e := &eras[n]
		step := Step{Change: e.change, At: e.from, Servers: len(e.taking)}
		for i := range conns {
			c := &conns[i]
			if c.Begin >= e.from {
				break
			}
			step.Begun++
			if c.End < e.from {
				continue
			}
			step.Open++
			if !c.broken && !way.reaches(n, e, c) {
				c.broken = true
				step.Broken++
			}
		}
		out = append(out, step)
	}
	return out, nil
}

// connection is a flow that is played.
type connection struct {
	*Flow
	hash   uint64
	home   uint16 // its server
	cookie uint16
	broken bool
}

// BrokenOptions say what is played.
type BrokenOptions struct {
	Seed        uint64
	Servers     int // of the story of many changes
	Changes     int
	Connections int           // of each story
	Lasting     time.Duration // mean time of connections in the story of scaling
}

// BrokenRow is what one step of a story did to its connections under a rule.
type BrokenRow struct {
	Story string `json:"story"`
	Rule  Rule   `json:"rule"`
	// Change counts them, from 1; AtS is when it came, in seconds.
	Change  int     `json:"change"`
	AtS     float64 `json:"at_s"`
	Servers int     `json:"servers"`
	Open    int     `json:"open"`
	// Broken are those that this change broke; BrokenPct is how many of all that began until now are broken, in percent.
	Broken    int     `json:"broken"`
	BrokenPct float64 `json:"broken_pct"`
}

// BrokenRules are what is compared, the best last.
var BrokenRules = []Rule{Modulo, PresentOwner, PreviousRing, LastOwner, Beamer, Published, Cookies}

// PlayBroken plays two stories under every rule: Churn, whose connections last from its beginning to its end, and Scaling, whose connections come and go. The
// options say everything: equal ones give equal rows.
func PlayBroken(o BrokenOptions) ([]BrokenRow, error) {
	churn := Churn(o.Servers, o.Changes, rand.New(rand.NewPCG(o.Seed, streamChanges)))
	scaling := Scaling()
	plays := []struct {
		story Story
		flows []Flow
	}{
		{churn, churn.Lasting(o.Connections, rand.New(rand.NewPCG(o.Seed, streamLasting)))},
		{scaling, scaling.Passing(o.Connections, o.Lasting, rand.New(rand.NewPCG(o.Seed, streamPassing)))},
	}
	var rows []BrokenRow
	for _, p := range plays {
		for _, rule := range BrokenRules {
			steps, err := p.story.Outlive(rule, p.flows, rand.New(rand.NewPCG(o.Seed, streamLeaving)))
			if err != nil {
				return nil, err
			}
			broken := 0
			for _, s := range steps {
				broken += s.Broken
				rows = append(rows, BrokenRow{
					Story: p.story.Name, Rule: rule, Change: s.Change, AtS: math.Round(1e3*s.At.Seconds()) / 1e3, Servers: s.Servers, Open: s.Open, Broken: s.Broken,
					BrokenPct: percent(broken, s.Begun),
				})
			}
		}
	}
	return rows, nil
}

// percent is a share in percent, to a thousandth.
func percent(part, of int) float64 { return math.Round(1e5*float64(part)/float64(of)) / 1e3 }

// Streams of random numbers of one seed.
const (
	streamChanges = iota + 1
	streamLasting
	streamPassing
	streamLeaving
	streamForged // and those of the other forgeries
	streamIdle   = streamForged + 10
)
