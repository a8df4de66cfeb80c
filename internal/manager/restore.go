package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/backup"
	"github.com/shuntlb/shunt/internal/store"
)

// ErrUsedStore reports that the store is not empty, because a backup is restored only into an empty
// one.
var ErrUsedStore = errors.New("the store is not empty")

// Bounds of one transaction of a restore.
const (
	restoreOps   = 1000
	restoreBytes = 8 << 20
)

// epochStep is the distance of a restored epoch from the backup's if the clock is not later.
const epochStep = 1_000_000

// Restoring holds the parameters of a restore.
type Restoring struct {
	// Dir receives the secrets, Store the keys. Both are empty.
	Dir   *DataDir
	Store store.Store
	// Name is that of the manager.
	Name string
	// By and From are the user who restores, and the machine.
	By, From string
	// Source is the place of the backup, for people.
	Source string
	Now    time.Time
}

// Restore writes a cluster's state, and returns the epoch that it begins after. Until it is done,
// no manager starts with the partial state.
func Restore(ctx context.Context, r Restoring, a *backup.Archive) (epoch int64, err error) {
	if err := CheckBackup(a); err != nil {
		return 0, err
	}
	epoch = epochAfter(a.Header.Epoch, r.Now)
	keys, err := restoredKeys(r, a, epoch)
	if err != nil {
		return 0, err
	}
	s := a.Secrets
	for _, file := range []struct {
		name    string
		content []byte
	}{{"store.key", s.StoreKey}, {"ca.key", s.CAKey}, {"ca.crt", s.CA}} {
		if err := writeFile(r.Dir.pki(file.name), file.content); err != nil {
			return 0, fmt.Errorf("write %s: %w", file.name, err)
		}
	}
	if err := fillStore(ctx, r.Store, keys); err != nil {
		return 0, fmt.Errorf("fill the store: %w", err)
	}
	return epoch, nil
}

// epochAfter returns an epoch that is later than any that a node has applied. Terms are longer than
// a second, so that no cluster gets ahead of the seconds since 1970: of two restores the later one
// wins, regardless of their backups. If the clock is behind the backup, epochStep is more terms
// than a cluster has between two backups.
func epochAfter(epoch int64, now time.Time) int64 {
	if now.Unix() > epoch {
		return now.Unix()
	}
	return epoch + epochStep
}

// restoredKeys returns the keys of the archive with the changes that a restore makes.
func restoredKeys(r Restoring, a *backup.Archive, epoch int64) (map[string][]byte, error) {
	keys := make(map[string][]byte, len(a.Keys)+4)
	for _, k := range a.Keys {
		keys[k.Name] = k.Value
		if strings.HasPrefix(k.Name, dirAudit) {
			value, err := datedAudit(k)
			if err != nil {
				return nil, fmt.Errorf("key %s: %w", k.Name, err)
			}
			keys[k.Name] = value
		}
	}
	keys[keyEpoch] = []byte(strconv.FormatInt(epoch, 10))
	keys[keyRestored] = keys[keyEpoch]
	h := a.Header
	from := fmt.Sprintf("from the backup of %s, revision %d, epoch %d", h.Time.UTC().Format(time.RFC3339), h.Revision, h.Epoch)
	faults, err := ForeignInBackup(a)
	if err != nil {
		return nil, err
	}
	message := fmt.Sprintf("the state was restored by %s %s", r.By, from)
	if len(faults) > 0 {
		message += fmt.Sprintf("; fields that name addresses of others: %d, the first is %s", len(faults), faults[0])
	}
	at := timestamppb.New(r.Now)
	for key, m := range map[string]proto.Message{
		pageKey(dirAudit, r.Now, epoch, 0): &apiv1.StoredAudit{Entries: []*apiv1.AuditEntry{{
			Time: at, Who: r.By, From: r.From, Call: "Restore", What: []string{"everything " + from + ", " + r.Source}, Count: 1,
		}}},
		pageKey(dirEvents, r.Now, epoch, 0): &apiv1.StoredEvents{Events: []*apiv1.Event{{
			Time: at, Kind: kindManager, Name: r.Name, Reason: reasonRestored, Severity: severityWarning, Count: 1,
			Message: message,
		}}},
	} {
		value, err := proto.Marshal(m)
		if err != nil {
			return nil, err
		}
		keys[key] = value
	}
	return keys, nil
}

// datedAudit returns a page of the audit log whose entries have the revision of their key.
func datedAudit(k backup.Key) ([]byte, error) {
	var page apiv1.StoredAudit
	if err := proto.Unmarshal(k.Value, &page); err != nil {
		return nil, err
	}
	for _, e := range page.GetEntries() {
		if e.GetRefused() == "" && e.GetRevision() == 0 {
			e.Revision = k.Revision
		}
	}
	return proto.Marshal(&page)
}

// fillStore writes the keys into an empty store. The schema is last, because while schemaRestoring
// is in its place no manager starts, and another restore is refused.
func fillStore(ctx context.Context, s store.Store, keys map[string][]byte) error {
	present, err := s.List(ctx, root)
	if err != nil {
		return err
	}
	if n := len(present.KVs); n > 0 {
		return fmt.Errorf("%w: it has %d keys below %s, the first is %s", ErrUsedStore, n, root, present.KVs[0].Key)
	}
	res, err := s.Txn(ctx, store.Txn{
		Compares: []store.Compare{{Key: keySchema}, {Key: keyEpoch}}, Ops: []store.Op{store.Put(keySchema, []byte(schemaRestoring))},
	})
	if err != nil {
		return err
	}
	if !res.Succeeded {
		return fmt.Errorf("%w: another manager or restore was faster", ErrUsedStore)
	}
	mine := store.Compare{Key: keySchema, ModRevision: res.Revision}
	write := func(ops []store.Op) error {
		res, err := s.Txn(ctx, store.Txn{Compares: []store.Compare{mine}, Ops: ops})
		if err == nil && !res.Succeeded {
			err = fmt.Errorf("%w any more: key %s was changed meanwhile", ErrUsedStore, keySchema)
		}
		return err
	}
	var ops []store.Op
	size := 0
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key == keySchema {
			continue
		}
		if len(ops) == restoreOps || len(ops) > 0 && size+len(keys[key]) > restoreBytes {
			if err := write(ops); err != nil {
				return err
			}
			ops, size = nil, 0
		}
		ops = append(ops, store.Put(key, keys[key]))
		size += len(key) + len(keys[key])
	}
	return write(append(ops, store.Put(keySchema, keys[keySchema])))
}
