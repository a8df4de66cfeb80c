package etcd

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// tendLimits holds the limits of maintenance; tests use smaller ones.
type tendLimits struct {
	// every is the interval of checks.
	every time.Duration
	// lowDisk is the free space on the disk, in bytes, below which a lone member refuses writes. A
	// member with others may fail, because they continue without it.
	lowDisk uint64
	// defragmentFrom is the minimum size, in bytes, of a database to defragment.
	defragmentFrom int64
}

func (l tendLimits) orDefault() tendLimits {
	if l == (tendLimits{}) {
		return tendLimits{every: 2 * time.Second, lowDisk: 192 << 20, defragmentFrom: 128 << 20}
	}
	return l
}

// The lock for defragmentation, so that only one member at a time is unavailable: its writes and
// reads wait meanwhile. The lease is long because it is not renewed.
const (
	keyDefragmenting = "/shunt/store/defragmenting"
	defragmentTTL    = 5 * time.Minute
)

// tend maintains the disk space and the database until the store ends.
func (m *Member) tend() {
	ticker := time.NewTicker(m.limits.every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-m.life.Done():
			return
		}
		if err := m.tendOnce(m.life); err != nil && m.ended() == nil {
			m.log.Warn("tending the store failed", "error", err)
		}
	}
}

func (m *Member) tendOnce(ctx context.Context) error {
	if err := m.tendHistory(ctx); err != nil {
		return err
	}
	full, err := m.tendSpace(ctx)
	if err != nil || full || !m.wasteful() {
		return err
	}
	return m.takeTurn(ctx, m.defragment)
}

// keepLarge is the number of revisions to keep if the history is large.
const keepLarge = 100

// tendHistory compacts a history that grew by a quarter of the quota. Auto compaction counts
// revisions, and a few thousand large ones would fill the database. Members do it independently of
// each other.
func (m *Member) tendHistory(ctx context.Context) error {
	used := m.etcd.Server.Backend().SizeInUse()
	m.used = min(m.used, used)
	if used-m.used < m.etcd.Server.Cfg.QuotaBackendBytes/4 {
		return nil
	}
	m.used = used
	revision, err := m.Barrier(ctx)
	if err != nil || revision <= keepLarge {
		return err
	}
	_, err = m.client.Compact(ctx, revision-keepLarge, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return m.fault("compact", err)
}

// firstTend ends an alarm of an earlier start. A lone member then has time until the next check to
// start its work, which needs a few writes, although the disk is still nearly full.
func (m *Member) firstTend(ctx context.Context) error {
	raised, err := m.alarmed(ctx)
	if err != nil || !raised || m.overQuota() {
		return err
	}
	free, err := freeSpace(m.dir)
	if err != nil || free < m.limits.lowDisk/2 {
		return err
	}
	return m.alarm(ctx, etcdserverpb.AlarmRequest_DEACTIVATE)
}

// tendSpace raises and ends the alarm of this member, which makes all members refuse writes. full
// reports that it is raised.
func (m *Member) tendSpace(ctx context.Context) (full bool, err error) {
	free, err := freeSpace(m.dir)
	if err != nil {
		return false, err
	}
	raised, err := m.alarmed(ctx)
	if err != nil {
		return false, err
	}
	alone := len(m.etcd.Server.Cluster().Members()) == 1
	switch {
	case !raised && alone && free < m.limits.lowDisk:
		m.log.Error("the disk is nearly full: the store takes no writes until there is room", "dir", m.dir, "free", free, "needed", 2*m.limits.lowDisk)
		return true, m.alarm(ctx, etcdserverpb.AlarmRequest_ACTIVATE)
	case !raised:
		return false, nil
	case alone && free < 2*m.limits.lowDisk:
		return true, nil
	}
	// The quota applies to the file, so history must be removed, and the file must shrink.
	if m.overQuota() {
		if err := m.compactAll(ctx); err != nil {
			return true, err
		}
		if err := m.defragment(ctx); err != nil {
			return true, err
		}
	}
	if m.overQuota() {
		return true, nil
	}
	m.log.Info("there is room again: the store takes writes", "dir", m.dir)
	return false, m.alarm(ctx, etcdserverpb.AlarmRequest_DEACTIVATE)
}

// overQuota leaves a tenth free, so that the alarm is not raised again immediately.
func (m *Member) overQuota() bool {
	return m.etcd.Server.Backend().Size() > m.etcd.Server.Cfg.QuotaBackendBytes/10*9
}

// wasteful reports whether more than half of a large database is free.
func (m *Member) wasteful() bool {
	be := m.etcd.Server.Backend()
	return be.Size() >= m.limits.defragmentFrom && be.SizeInUse() < be.Size()/2
}

func (m *Member) alarmed(ctx context.Context) (bool, error) {
	res, err := m.client.AlarmList(ctx)
	if err != nil {
		return false, fmt.Errorf("list alarms: %w", err)
	}
	for _, a := range res.Alarms {
		if a.Alarm == etcdserverpb.AlarmType_NOSPACE && a.MemberID == uint64(m.etcd.Server.MemberID()) {
			return true, nil
		}
	}
	return false, nil
}

func (m *Member) alarm(ctx context.Context, action etcdserverpb.AlarmRequest_AlarmAction) error {
	_, err := m.etcd.Server.Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: action, Alarm: etcdserverpb.AlarmType_NOSPACE, MemberID: uint64(m.etcd.Server.MemberID()),
	})
	if err != nil {
		return fmt.Errorf("change alarm: %w", err)
	}
	return nil
}

func (m *Member) compactAll(ctx context.Context) error {
	revision, err := m.Barrier(ctx)
	if err != nil {
		return err
	}
	// Physical: it returns when the history is removed from the file.
	_, err = m.client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return m.fault("compact", err)
}

// takeTurn runs do unless another member holds the lock; then it returns nil.
func (m *Member) takeTurn(ctx context.Context, do func(context.Context) error) error {
	lease, err := m.client.Grant(ctx, int64(defragmentTTL/time.Second))
	if err != nil {
		return fmt.Errorf("take a turn: %w", err)
	}
	defer m.client.Revoke(context.WithoutCancel(ctx), lease.ID)
	res, err := m.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(keyDefragmenting), "=", 0)).
		Then(clientv3.OpPut(keyDefragmenting, "", clientv3.WithLease(lease.ID))).Commit()
	if err != nil || !res.Succeeded {
		return err
	}
	return do(ctx)
}

// defragment rewrites this member's database without its free space.
func (m *Member) defragment(context.Context) error {
	be := m.etcd.Server.Backend()
	before, began := be.Size(), m.now()
	if err := be.Defrag(); err != nil {
		return fmt.Errorf("defragment: %w", err)
	}
	m.log.Info("database is defragmented", "before", before, "after", be.Size(), "took", m.now().Sub(began).Round(time.Millisecond))
	return nil
}

// freeSpace returns the space available to this process on the disk of the directory, in bytes.
func freeSpace(dir string) (uint64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}
