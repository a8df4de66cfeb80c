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

// A schema is a way to write the state into the store. A program works with its newest one and with the one before: managers of
// two versions work on one store while one after the other is replaced. The leader raises the schema when nobody needs the former
// one any more; from then on managers of the former version refuse the store. Until then what came with the newest is refused.
const (
	// Schema is the newest that this program works with.
	Schema = schemaHealth
	// schemaHealth has all kinds of checks, several of an endpoint, and what their verdicts mean: fields of objects alone
	// (newFields), so that nothing that is stored changes when it is reached.
	schemaHealth = 3
	// schemaMembers has several managers.
	schemaMembers = 2
	// schemaAlone had one manager: its leader key held the last epoch for ever, there were no keyEpoch and keyCA. Everything
	// else is as it was; the first campaign brings it up to date at once, because nobody else can be there.
	schemaAlone = 1
	// schemaRestoring stands in the place of a schema until a restore has written everything: nobody works with half of it.
	schemaRestoring = "restoring"
)

// schemaText is what keySchema holds.
func schemaText(schema int64) string { return strconv.FormatInt(schema, 10) }

// foldSchemaLocked refuses data that this version does not know.
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

// schemaNow is the store's; 0 while it has none.
func (v *view) schemaNow() int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.schema
}

// raisePause is how often the leader looks whether every manager is of the new version.
const raisePause = time.Second

// raiseSchema raises the schema once every manager works with the new one. It is a duty.
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

// raise makes the schema the newest, unless somebody changed it meanwhile.
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

// behindSchema are the managers that do not work with the newest schema, or of which nobody knows because they are not up. Of an
// outside etcd only those that are up are known.
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
		// One that is alone may be a member under another name.
		if len(members) > 1 && m.view.managers[c.Name] == nil {
			behind = append(behind, c.Name+", which is not up")
		}
	}
	slices.Sort(behind)
	return behind, nil
}
