package manager

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"strconv"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/store"
)

// errForeignCA reports that the data directory belongs to another store.
var errForeignCA = errors.New("the store belongs to another CA than pki/ca.crt of the data directory: join this manager with a token of role manager, or restore the directory from a backup")

// leaderKey is the leadership state in the view.
type leaderKey struct {
	// mod is the revision of the leader key; 0 without a leader.
	mod int64
	// name and address (host:port) are those of the leader; empty without a leader.
	name, address string
	// epoch is the last one.
	epoch int64
}

// leadership returns the leadership state of the view.
func (v *view) leadership() leaderKey {
	v.mu.RLock()
	defer v.mu.RUnlock()
	l := v.leader
	l.epoch = v.state.Epoch
	return l
}

// foldLeaderLocked applies a change of the leader key. Plans keep the last epoch while there is no
// leader.
func (v *view) foldLeaderLocked(ev store.Event, c *change) error {
	if ev.Deleted {
		v.leader = leaderKey{}
		return nil
	}
	var stored apiv1.StoredLeader
	if err := proto.Unmarshal(ev.KV.Value, &stored); err != nil {
		return err
	}
	v.leader = leaderKey{mod: ev.KV.ModRevision, name: stored.GetName(), address: stored.GetAddress()}
	v.reachLocked(stored.GetEpoch(), c)
	return nil
}

// foldEpochLocked applies a change of the last epoch.
func (v *view) foldEpochLocked(ev store.Event, c *change) error {
	if ev.Deleted {
		return errors.New("the epoch was deleted")
	}
	epoch, err := strconv.ParseInt(string(ev.KV.Value), 10, 64)
	if err != nil {
		return err
	}
	v.epochMod = ev.KV.ModRevision
	v.reachLocked(epoch, c)
	return nil
}

// foldRestoredLocked applies a change of the epoch that the state was restored with.
func (v *view) foldRestoredLocked(ev store.Event) error {
	if ev.Deleted {
		return errors.New("the epoch of the restored state was deleted")
	}
	var err error
	v.restored, err = strconv.ParseInt(string(ev.KV.Value), 10, 64)
	return err
}

// restoredEpoch returns the epoch that the state was restored with; 0 if it never was.
func (v *view) restoredEpoch() int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.restored
}

func (v *view) reachLocked(epoch int64, c *change) {
	if epoch > v.state.Epoch {
		v.state.Epoch, c.epoch = epoch, true
	}
}

// foldCALocked returns an error if the store belongs to another CA.
func (v *view) foldCALocked(ev store.Event) error {
	block, _ := pem.Decode(ev.KV.Value)
	if ev.Deleted || block == nil {
		return errForeignCA
	}
	for _, ca := range v.secrets.cas() {
		if bytes.Equal(block.Bytes, ca.Raw) {
			return nil
		}
	}
	return errForeignCA
}

// until blocks until the condition holds. It checks the condition after every fold, with the view
// locked.
func (v *view) until(ctx context.Context, holds func() bool) error {
	for {
		v.mu.RLock()
		ok, advanced := holds(), v.advanced
		v.mu.RUnlock()
		if ok {
			return nil
		}
		select {
		case <-advanced:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
