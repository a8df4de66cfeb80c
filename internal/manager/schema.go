package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/store"
)

// A schema is the format of the state in the store. A program supports its newest schema and the
// one before, because managers of two versions share one store during a rolling upgrade. The leader
// raises the schema once no manager needs the previous one. After that, managers of the previous
// version refuse the store. Before that, fields and values of the newest schema are refused.
const (
	// Schema is the newest schema that this program supports.
	Schema = schemaHealth
	// schemaHealth adds all kinds of checks, several checks per endpoint and the settings for their
	// verdicts. It adds only fields of objects (newFields), so raising the schema changes no stored
	// value.
	schemaHealth = 3
	// schemaMembers adds support for several managers.
	schemaMembers = 2
	// schemaAlone supported one manager. Its leader key held the last epoch permanently, and
	// keyEpoch and keyCA did not exist. Everything else is unchanged. The first election upgrades
	// it immediately, because no other manager can be running.
	schemaAlone = 1
	// schemaRestoring replaces the schema until a restore has written everything, so that no
	// manager works with a partial restore.
	schemaRestoring = "restoring"
)

// schemaText returns the value of keySchema for a schema.
func schemaText(schema int64) string { return strconv.FormatInt(schema, 10) }

// foldSchemaLocked applies a change of keySchema. It returns an error for a schema that this
// version does not support.
func (v *view) foldSchemaLocked(ev store.Event) error {
	text := string(ev.KV.Value)
	if text == schemaRestoring {
		return errors.New("a restore broke off or goes on: if it broke off, delete everything below " + root + " and restore again")
	}
	schema, err := strconv.ParseInt(text, 10, 64)
	switch {
	case ev.Deleted || err != nil:
		return fmt.Errorf("schema of the data: %q: must be a number", text)
	case schema > v.newest:
		return fmt.Errorf("schema of the data: %d: must be at most %d: a newer version of shunt raised it, and this one is too old for it", schema, v.newest)
	case schema < v.newest-1 && schema != schemaAlone:
		return fmt.Errorf("schema of the data: %d: must be at least %d: upgrade to a version between first, which raises it", schema, v.newest-1)
	}
	v.schema, v.schemaMod = schema, ev.KV.ModRevision
	return nil
}

// schemaNow returns the schema of the store, or 0 if the store has none.
func (v *view) schemaNow() int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.schema
}

// raisePause is the interval at which the leader checks whether every manager runs the new version.
const raisePause = time.Second

// raiseSchema raises the schema once every manager supports the new one. It runs as a controller of
// the leader.
func (m *Manager) raiseSchema(ctx context.Context) error {
	for said := ""; m.view.schemaNow() < m.o.Schema; {
		behind, err := m.behindSchema(ctx)
		if err == nil && len(behind) == 0 {
			err = m.raise(ctx)
		}
		text := strings.Join(behind, ", ")
		switch {
		case err != nil && ctx.Err() == nil:
			m.o.Log.Warn("cannot raise the schema", "error", err)
		case text != "" && text != said:
			m.o.Log.Info("keeps the former schema until every manager is of the new version", "schema", m.view.schemaNow(), "waits_for", text)
			said = text
		}
		select {
		case <-m.o.Clock.After(raisePause):
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// raise sets the schema to the newest, unless another write changed it concurrently.
func (m *Manager) raise(ctx context.Context) error {
	m.view.mu.RLock()
	mod := m.view.schemaMod
	m.view.mu.RUnlock()
	res, err := m.commit(ctx, store.Txn{
		Compares: []store.Compare{{Key: keySchema, ModRevision: mod}}, Ops: []store.Op{store.Put(keySchema, []byte(schemaText(m.o.Schema)))},
	})
	if err != nil {
		return err
	}
	if res.Succeeded {
		m.o.Log.Info("the schema is raised", "schema", m.o.Schema)
	}
	return m.view.wait(ctx, res.Revision)
}

// behindSchema returns the managers that do not support the newest schema, or whose version is
// unknown because they are down. With an external etcd it covers only managers that are up.
func (m *Manager) behindSchema(ctx context.Context) (behind []string, err error) {
	var members []store.ClusterMember
	if m.o.Cluster != nil {
		if members, err = m.o.Cluster.Members(ctx); err != nil {
			return nil, err
		}
	}
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	for name, s := range m.view.managers {
		if s.GetSchema() < m.o.Schema {
			behind = append(behind, fmt.Sprintf("%s of version %s", name, s.GetVersion()))
		}
	}
	for _, c := range members {
		// A single member may be registered under another name.
		if len(members) > 1 && m.view.managers[c.Name] == nil {
			behind = append(behind, c.Name+", which is not up")
		}
	}
	slices.Sort(behind)
	return behind, nil
}
