package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// Step is the effect of one change on a story's connections, or of the time when hosts drop an
// earlier change.
type Step struct {
	Change  int // from 1
	At      time.Duration
	Servers int // that accept connections from now on
	Begun   int // connections that began until now
	Open    int // of them, those that have not ended
	// Broken counts the open connections that break now: a packet of theirs reaches a server other
	// than their own.
	Broken int
}

// Outlive runs a story with connections that send all the time, ordered by their beginning, and
// returns step by step which of them break under a rule. A connection breaks once. No mux has flow
// entries, because the rule is tested without them. chooser chooses the servers that are removed.
// Equal choosers choose equally.
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

// connection is a flow in a run.
type connection struct {
	*Flow
	hash   uint64
	home   uint16 // its server
	cookie uint16
	broken bool
}

// BrokenOptions configure the stories.
type BrokenOptions struct {
	Seed        uint64
	Servers     int // of the story of many changes
	Changes     int
	Connections int           // of each story
	Lasting     time.Duration // mean duration of connections in the story of scaling
}

// BrokenRow is the effect of one step of a story on its connections under a rule.
type BrokenRow struct {
	Story string `json:"story"`
	Rule  Rule   `json:"rule"`
	// Change numbers the changes, from 1. AtS is the time of the change, in seconds.
	Change  int     `json:"change"`
	AtS     float64 `json:"at_s"`
	Servers int     `json:"servers"`
	Open    int     `json:"open"`
	// Broken counts the connections that this change broke. BrokenPct is the share of all
	// connections begun until now that are broken, in percent.
	Broken    int     `json:"broken"`
	BrokenPct float64 `json:"broken_pct"`
}

// BrokenRules are the compared rules, the best last.
var BrokenRules = []Rule{Modulo, PresentOwner, PreviousRing, LastOwner, Beamer, Published, Cookies}

// PlayBroken runs two stories under every rule: Churn, whose connections last from its beginning to
// its end, and Scaling, whose connections begin and end. Equal options give equal rows.
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

// percent returns a share in percent, to a thousandth.
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
