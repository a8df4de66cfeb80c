package manager

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/store"
)

// campaignPause is how long a member waits after a failed term or election, so that another one may
// lead.
const campaignPause = time.Second

// campaignTimeout bounds an election, because a request sent to the store while the store's own
// leader changes may be lost, and the store reports that only after seven seconds. An abandoned
// request has no lasting effect: its lease lapses.
const campaignTimeout = leaseTTL

// firstCampaign runs an election if no other member leads. An earlier process of this name no
// longer leads, because no two running members have the same name (see rival).
func (m *Manager) firstCampaign(ctx context.Context) (*term, error) {
	l := m.view.leadership()
	if l.mod != 0 && l.name != m.o.Name && m.view.schemaNow() != schemaAlone {
		// The writes before the leader key may be incompatible with this member, which then ends
		// with that cause.
		ctx, cancel := endWith(ctx, m.ctx)
		defer cancel()
		return nil, m.catchUp(ctx)
	}
	return m.campaign(ctx, l.mod)
}

// leadAll leads whenever it can, until the member stops. t is the term that it begins with, or nil.
func (m *Manager) leadAll(t *term) {
	for m.ctx.Err() == nil {
		var err error
		if t == nil {
			if m.view.until(m.ctx, func() bool { return m.view.leader.mod == 0 }) != nil {
				return
			}
			ctx, cancel := context.WithTimeout(m.ctx, campaignTimeout)
			t, err = m.campaign(ctx, 0)
			cancel()
		}
		if t != nil {
			err = t.work()
		}
		if t = nil; err == nil {
			continue
		}
		select {
		case <-m.o.Clock.After(campaignPause):
		case <-m.ctx.Done():
		}
	}
}

// take makes t the current term of this member.
func (m *Manager) take(t *term) {
	m.mu.Lock()
	m.term = t
	m.mu.Unlock()
	context.AfterFunc(t.ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.term == t {
			m.term = nil
		}
	})
	m.judge()
	m.o.Log.Info("leads", "epoch", t.epoch)
}

// judge ends a term whose leader key is no longer in the view. It is called after every fold.
func (m *Manager) judge() {
	t := m.present()
	if t == nil {
		return
	}
	switch l := m.view.leadership(); l.mod {
	case t.leaderMod:
	case 0:
		t.end(store.ErrLeaseLost)
	default:
		t.end(ErrFenced)
	}
}

// campaign begins the next epoch in one transaction if the leader key is still at revision
// leaderMod (0: absent). It returns this member's new term, or nil if another member was faster,
// which the view then shows. The same transaction initializes a fresh store, and so exactly once,
// and upgrades a store of the previous schema.
func (m *Manager) campaign(ctx context.Context, leaderMod int64) (*term, error) {
	ctx, cancel := endWith(ctx, m.ctx)
	defer cancel()
	asked := m.o.Clock.Now()
	lease, err := m.o.Store.Grant(ctx, leaseTTL)
	if err != nil {
		return nil, m.campaignFailed(fmt.Errorf("begin epoch: %w", err))
	}
	epoch, txn, err := m.candidacy(leaderMod, lease)
	var res store.TxnResult
	if err == nil {
		res, err = m.o.Store.Txn(ctx, txn)
	}
	if err == nil {
		err = m.view.wait(ctx, res.Revision)
	}
	if err == nil && res.Succeeded {
		t := newTerm(m, epoch, res.Revision, lease, asked)
		m.take(t)
		return t, nil
	}
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	if rerr := m.o.Store.Revoke(rctx, lease); rerr != nil {
		m.o.Log.Debug("cannot revoke the lease", "error", rerr)
	}
	if err != nil {
		return nil, m.campaignFailed(fmt.Errorf("begin epoch %d: %w", epoch, err))
	}
	return nil, nil
}

// campaignFailed logs and returns err. If the member ended, it returns the cause of that instead.
func (m *Manager) campaignFailed(err error) error {
	if m.ctx.Err() != nil {
		return context.Cause(m.ctx)
	}
	m.o.Log.Warn("cannot campaign", "error", err)
	return err
}

// candidacy returns the transaction that begins the next epoch.
func (m *Manager) candidacy(leaderMod int64, lease store.LeaseID) (epoch int64, txn store.Txn, err error) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	v := m.view
	epoch = v.state.Epoch + 1
	value, err := proto.Marshal(&apiv1.StoredLeader{
		Epoch: epoch, Name: m.o.Name, Since: timestamppb.New(m.o.Clock.Now()), Address: apiAddress(m.o),
	})
	if err != nil {
		return epoch, txn, err
	}
	txn = store.Txn{
		Compares: []store.Compare{{Key: keyLeader, ModRevision: leaderMod}, {Key: keyEpoch, ModRevision: v.epochMod}, {Key: keySchema, ModRevision: v.schemaMod}},
		Ops: []store.Op{
			{Key: keyLeader, Value: value, Lease: lease},
			store.Put(keyEpoch, []byte(strconv.FormatInt(epoch, 10))),
		},
	}
	if v.schema <= schemaAlone {
		txn.Ops = append(txn.Ops, store.Put(keySchema, []byte(schemaText(m.o.Schema))), store.Put(keyCA, m.secrets.ca().CertPEM()))
	}
	if len(v.state.RingKeys) == 0 {
		// The second key is the secret from which the keys of single VIPs are derived.
		for _, id := range []uint32{clusterRingKey, clusterRingKey + 1} {
			op, err := m.newRingKey(id)
			if err != nil {
				return epoch, txn, err
			}
			txn.Compares = append(txn.Compares, store.Compare{Key: op.Key})
			txn.Ops = append(txn.Ops, op)
		}
	}
	return epoch, txn, nil
}
