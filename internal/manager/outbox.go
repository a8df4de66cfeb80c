package manager

import (
	"sync"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/notify"
)

// outbox holds the last reports of this member's nodes, and those that the leader has not received.
// A later report replaces an earlier one. More important ones are sent first: connected nodes and
// their applied revisions, then verdicts on health, then statuses with their counters. A new leader
// receives all of them.
type outbox struct {
	mu    sync.Mutex
	nodes map[string]*lastWords
	gone  []*apiv1.NodeLeft
	// queues holds, for each weight, the nodes with something to send, in order of arrival.
	queues [weights][]string
	// linked: a leader receives reports. Otherwise they are kept, and nothing is queued.
	linked bool
	wake   chan struct{} // room for one
}

// weight is the priority of a report. Lower values are sent first.
type weight int

const (
	weightSNAT weight = iota
	weightObeyed
	weightHealth
	weightStatus
	weights
)

// lastWords holds the reports of a node's newest stream.
type lastWords struct {
	session *session
	hello   *apiv1.Hello
	// introduced reports whether the leader has received the hello.
	introduced    bool
	synced, epoch int64
	// snat holds the SNAT reports that the leader has not received. snatAck is a mux's last
	// acknowledgement.
	snat    *apiv1.NodeReport
	snatAck *apiv1.SnatAck
	// answers holds replies to requests, and the node's own requests. None is replaced by a later
	// one.
	answers []*apiv1.NodeReport
	// verdicts are all verdicts of the node. fresh are those that the leader has not received.
	// Neither is ever modified.
	verdicts, fresh *apiv1.HealthReport
	status          *apiv1.NodeStatus // never modified
	queued          [weights]bool
}

func newOutbox() *outbox {
	return &outbox{nodes: map[string]*lastWords{}, wake: make(chan struct{}, 1)}
}

// hello records the beginning of a stream.
func (o *outbox) hello(s *session, hello *apiv1.Hello) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if old := o.nodes[s.name]; old != nil && old.session.number > s.number {
		return
	}
	n := &lastWords{session: s, hello: hello, synced: hello.GetHaveRevision(), epoch: hello.GetEpoch()}
	if old := o.nodes[s.name]; old != nil {
		n.queued = old.queued
	}
	o.nodes[s.name] = n
	o.queueLocked(n, weightObeyed)
}

// ack records the revision that the node has applied.
func (o *outbox) ack(s *session, synced int64) {
	o.with(s, func(n *lastWords) {
		if n.synced != synced {
			n.synced = synced
			o.queueLocked(n, weightObeyed)
		}
	})
}

// hear queues the parts of a report that must not wait: SNAT, the epoch, and replies to requests.
func (o *outbox) hear(s *session, r *apiv1.NodeReport) {
	says, alone := saysSNAT(r)
	o.with(s, func(n *lastWords) {
		if says {
			o.hearSNATLocked(n, r)
		}
		if alone {
			return
		}
		if n.epoch != r.GetEpoch() {
			n.epoch = r.GetEpoch()
			o.queueLocked(n, weightObeyed)
		}
		answers := r.GetTrace() != nil || r.GetFlows() != nil || r.GetHealthReply() != nil || r.GetSnatWords() != nil
		if o.linked && (answers || r.GetAskHealth()) && len(n.answers) < maxQuestions {
			n.answers = append(n.answers, &apiv1.NodeReport{Trace: r.GetTrace(), Flows: r.GetFlows(), HealthReply: r.GetHealthReply(), SnatWords: r.GetSnatWords(), AskHealth: r.GetAskHealth()})
			o.queueLocked(n, weightObeyed)
		}
	})
}

// health records verdicts. all are those of the node including them.
func (o *outbox) health(s *session, h, all *apiv1.HealthReport) {
	o.with(s, func(n *lastWords) {
		if n.verdicts = all; o.linked {
			n.fresh = mergeHealth(n.fresh, h)
		}
		o.queueLocked(n, weightHealth)
	})
}

// report records a status.
func (o *outbox) report(s *session, st *apiv1.NodeStatus) {
	o.with(s, func(n *lastWords) {
		n.status = st
		o.queueLocked(n, weightStatus)
	})
}

// with calls change with the reports of a stream, unless it is over.
func (o *outbox) with(s *session, change func(*lastWords)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := o.nodes[s.name]; n != nil && n.session == s {
		change(n)
	}
}

// left records the end of a stream.
func (o *outbox) left(s *session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := o.nodes[s.name]; n == nil || n.session != s {
		return
	}
	delete(o.nodes, s.name)
	if o.linked {
		o.gone = append(o.gone, &apiv1.NodeLeft{Node: s.name, Stream: s.number})
		notify.Send(o.wake)
	}
}

func (o *outbox) queueLocked(n *lastWords, w weight) {
	if !o.linked || n.queued[w] {
		return
	}
	n.queued[w] = true
	o.queues[w] = append(o.queues[w], n.session.name)
	notify.Send(o.wake)
}

// link queues all reports for a new leader connection.
func (o *outbox) link() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unlinkLocked()
	o.linked = true
	for _, n := range o.nodes {
		n.introduced, n.fresh = false, n.verdicts
		if n.snatAck != nil {
			n.snat = &apiv1.NodeReport{SnatAck: n.snatAck}
			o.queueLocked(n, weightSNAT)
		}
		o.queueLocked(n, weightObeyed)
		if n.fresh != nil {
			o.queueLocked(n, weightHealth)
		}
		if n.status != nil {
			o.queueLocked(n, weightStatus)
		}
	}
	notify.Send(o.wake)
}

// unlink ends the leader connection and clears the queues.
func (o *outbox) unlink() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unlinkLocked()
}

func (o *outbox) unlinkLocked() {
	o.linked, o.gone, o.queues = false, nil, [weights][]string{}
	for _, n := range o.nodes {
		n.queued, n.answers, n.fresh, n.snat = [weights]bool{}, nil, nil, nil
	}
}

// next removes and returns the most important queued message; nil if none has at least the priority
// of least.
func (o *outbox) next(least weight) *apiv1.RelayUp {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.gone) > 0 {
		up := &apiv1.RelayUp{Left: o.gone[0]}
		o.gone = o.gone[1:]
		return up
	}
	for w := range least + 1 {
		for len(o.queues[w]) > 0 {
			name := o.queues[w][0]
			n := o.nodes[name]
			if n != nil && len(n.answers) > 0 && n.introduced && w == weightObeyed {
				report := n.answers[0]
				n.answers = n.answers[1:]
				return n.say(report)
			}
			o.queues[w] = o.queues[w][1:]
			if n == nil {
				continue // it disconnected
			}
			n.queued[w] = false
			report := &apiv1.NodeReport{}
			switch w {
			case weightSNAT:
				if n.snat == nil {
					continue
				}
				report, n.snat = n.snat, nil
			case weightHealth:
				report.Health, n.fresh = n.fresh, nil
			case weightStatus:
				report.Status = n.status
			}
			up := n.say(report)
			if w == weightObeyed && len(n.answers) > 0 {
				o.queueLocked(n, w)
			}
			return up
		}
	}
	return nil
}

// say returns the message of a report. The first of a stream carries its hello.
func (n *lastWords) say(report *apiv1.NodeReport) *apiv1.RelayUp {
	report.SyncedRevision, report.Epoch = n.synced, n.epoch
	if !n.introduced {
		report.Hello, n.introduced = n.hello, true
	}
	return &apiv1.RelayUp{Said: &apiv1.NodeSaid{Node: n.session.name, Role: string(n.session.role), Stream: n.session.number, Report: report}}
}
