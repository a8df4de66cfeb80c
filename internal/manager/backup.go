package manager

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/backup"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

const (
	// backupChunk is the maximum size of a message of Backup.
	backupChunk = 256 << 10
	// backupPatience is how long a message may stay unread before the backup is aborted, because
	// other callers wait for it.
	backupPatience = 30 * time.Second
)

// Backup implements the API. Any member serves it. The backup holds every write acknowledged before
// the call.
func (a api) Backup(ctx context.Context, _ *connect.Request[apiv1.BackupRequest], stream *connect.ServerStream[apiv1.BackupResponse]) error {
	// Backups run one at a time, because each holds the whole state in memory until its caller has
	// read it.
	select {
	case a.m.backingUp <- struct{}{}:
	case <-ctx.Done():
		return fault(context.Cause(ctx))
	case <-a.m.ctx.Done():
		return connect.NewError(connect.CodeUnavailable, context.Cause(a.m.ctx))
	}
	defer func() { <-a.m.backingUp }()
	archive, err := a.m.archive(ctx)
	if err != nil {
		return fault(err)
	}
	// A backup has every secret of the cluster, so the audit log records the caller whether the
	// stream breaks or not.
	h := archive.Header
	a.m.audited(a.m.auditEntry(ctx, fmt.Sprintf("revision %d, epoch %d, %d keys", h.Revision, h.Epoch, h.Keys)))
	sending := &writing{response: responseOf(ctx)}
	defer sending.close()
	sends, end := context.WithCancel(ctx)
	defer end()
	go a.m.endUnread(sends, sending)
	w := bufio.NewWriterSize(chunks{stream, sending, a.m.o.Clock}, backupChunk)
	if err := backup.Encode(w, archive); err != nil {
		return fault(err)
	}
	if err := w.Flush(); err != nil {
		return fault(err)
	}
	return nil
}

// endUnread aborts a backup whose caller does not read it. It runs until ctx ends.
func (m *Manager) endUnread(ctx context.Context, sending *writing) {
	for {
		select {
		case <-m.o.Clock.After(stuckEvery):
		case <-ctx.Done():
			return
		}
		if sending.under(m.o.Clock.Now()) > backupPatience {
			sending.abort()
		}
	}
}

// chunks sends written bytes in messages of at most backupChunk.
type chunks struct {
	stream  *connect.ServerStream[apiv1.BackupResponse]
	sending *writing
	clock   clock.Clock
}

// Write implements io.Writer.
func (c chunks) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		some := b[:min(len(b), backupChunk)]
		err := c.sending.do(c.clock.Now(), func() error { return c.stream.Send(&apiv1.BackupResponse{Chunk: some}) })
		if err != nil {
			return n, err
		}
		n, b = n+len(some), b[len(some):]
	}
	return n, nil
}

// archive reads the state at one revision that includes every write acknowledged before the call.
func (m *Manager) archive(ctx context.Context) (*backup.Archive, error) {
	if err := m.catchUp(ctx); err != nil {
		return nil, err
	}
	if err := m.view.caQuiet("make a backup"); err != nil {
		return nil, err
	}
	snap, err := m.o.Store.List(ctx, root)
	if err != nil {
		return nil, err
	}
	for _, kv := range snap.KVs {
		if kv.Key != keyCAChange {
			continue
		}
		// A replacement may have begun since the check above.
		if c, err := parseCAChange(kv.Value); err != nil {
			return nil, err
		} else if c.underWay() {
			return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("cannot make a backup while the CA is replaced (phase %s)", c.Phase))
		}
	}
	caKey, err := m.secrets.ca().KeyPEM()
	if err != nil {
		return nil, err
	}
	hash := m.secrets.ca().Hash()
	a := &backup.Archive{
		Header: backup.Header{
			Time: m.o.Clock.Now().UTC(), Version: m.o.Version, Commit: m.o.Commit, Revision: snap.Revision,
			Cluster: m.secrets.ca().Cert.Subject.CommonName, CA: hex.EncodeToString(hash[:]),
		},
		Secrets: backup.Secrets{CA: m.secrets.ca().CertPEM(), CAKey: caKey, StoreKey: m.secrets.storeKey()},
	}
	for _, kv := range snap.KVs {
		if !transient(kv.Key) {
			a.Keys = append(a.Keys, backup.Key{Name: kv.Key, Revision: kv.ModRevision, Value: kv.Value})
		}
	}
	v, err := readArchive(a, m.o.Schema)
	if err != nil {
		return nil, err
	}
	a.Header.Schema, a.Header.Epoch = schemaText(v.schema), v.state.Epoch
	a.Header.Keys, a.Header.Counts = len(a.Keys), countKeys(a.Keys)
	return a, nil
}

// transient reports whether a key belongs to running members and is of no use in a backup.
func transient(key string) bool { return key == keyLeader || strings.HasPrefix(key, dirManagers) }

// readArchive builds a view from the archive's keys, like a member that starts with them, which
// proves that the keys can be read. The secrets must be those that the keys belong to.
func readArchive(a *backup.Archive, newest int64) (*view, error) {
	s, err := archiveSecrets(a)
	if err != nil {
		return nil, err
	}
	snap := store.Snapshot{Revision: a.Header.Revision}
	for _, k := range a.Keys {
		if !strings.HasPrefix(k.Name, root) || transient(k.Name) {
			return nil, fmt.Errorf("key %s: must be below %s, and not of members that are up", k.Name, root)
		}
		snap.KVs = append(snap.KVs, store.KV{Key: k.Name, Value: k.Value, ModRevision: k.Revision, CreateRevision: k.Revision})
	}
	v := newView(s)
	v.newest = newest
	if err := v.load(snap, 0); err != nil {
		return nil, err
	}
	for key, mod := range map[string]int64{keySchema: v.schemaMod, keyEpoch: v.epochMod} {
		if mod == 0 {
			return nil, fmt.Errorf("key %s: is missing", key)
		}
	}
	if len(v.state.RingKeys) == 0 {
		return nil, fmt.Errorf("key %s: is missing", dirRingKeys)
	}
	return v, nil
}

// CheckBackup returns an error unless a cluster can be restored from the archive: its header
// matches its content, its secrets belong to its keys, and every key can be read.
func CheckBackup(a *backup.Archive) error {
	if a.Header.Schema != schemaText(Schema) && a.Header.Schema != schemaText(Schema-1) {
		return fmt.Errorf("schema %q: must be %d or %d: it needs another version of shunt, such as %s, which wrote it", a.Header.Schema, Schema, Schema-1, a.Header.Version)
	}
	v, err := readArchive(a, Schema)
	if err != nil {
		return err
	}
	if hash := v.secrets.ca().Hash(); hex.EncodeToString(hash[:]) != a.Header.CA {
		return fmt.Errorf("header: ca: %s: must be %x, that of the CA's certificate", a.Header.CA, hash)
	}
	if schemaText(v.schema) != a.Header.Schema || v.state.Epoch != a.Header.Epoch {
		return fmt.Errorf("header: schema %q and epoch %d: must be %d and %d, as the keys say", a.Header.Schema, a.Header.Epoch, v.schema, v.state.Epoch)
	}
	return nil
}

// ForeignInBackup returns the faults of an archive's objects under the rules of address ownership,
// as if an administrator applied all of them. A restore accepts them all the same, because it
// brings back the previous state, and objects from before a Tenant listed its addresses keep the
// addresses they name.
func ForeignInBackup(a *backup.Archive) ([]lb.Violation, error) {
	v, err := readArchive(a, Schema)
	if err != nil {
		return nil, err
	}
	all := make([]lb.Edit, 0, len(v.records))
	for r, record := range v.records {
		all = append(all, lb.Edit{Kind: r.kind, Name: r.name, Object: record.obj})
	}
	return lb.NewState().Foreign(lb.Claimant{}, all...), nil
}

// countKeys counts objects by kind, and all other keys by their directory.
func countKeys(keys []backup.Key) map[string]int {
	out := map[string]int{}
	for _, k := range keys {
		if r, ok := parseObjectKey(k.Name); ok && strings.HasPrefix(k.Name, dirObjects) {
			out[string(r.kind)]++
			continue
		}
		dir, _, below := strings.Cut(strings.TrimPrefix(k.Name, root), "/")
		if below {
			out[dir]++
		}
	}
	return out
}
