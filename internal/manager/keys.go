package manager

import (
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// Keys of the store. Everything is under root.
const (
	root        = "/shunt/"
	keySchema   = root + "schema"    // what foldSchemaLocked reads
	keyLeader   = root + "leader"    // StoredLeader, on the lease of the one who leads
	keyEpoch    = root + "epoch"     // the last epoch, for ever
	keyCA       = root + "ca"        // the certificate of the CA that the store belongs to, PEM
	keyCAChange = root + "ca-change" // StoredCAChange, the replacement of the CA that is under way or was the last
	keyRestored = root + "restored"  // the epoch that the state was restored with; revisions of former epochs say nothing
	keySerial   = root + "serial"    // put by every write, so that two writes never commit from one snapshot
	dirObjects  = root + "objects/"
	dirStates   = root + "endpoints/"
	dirRingKeys = root + "keys/ring/"
	dirTokens   = root + "tokens/"
	dirAccess   = root + "access/"
	dirRevoked  = root + "revoked/"
	dirManagers = root + "managers/" // StoredManager, each on its member's lease
	dirEvents   = root + "events/"
	dirAudit    = root + "audit/"
)

// ref names an object.
type ref struct {
	kind lb.Kind
	name string
}

func refOf(o lb.Object) ref { return ref{o.Kind(), o.ObjectName()} }

// key is "objects/Kind/name". Names hold no slash: they were validated.
func (r ref) key() string { return dirObjects + string(r.kind) + "/" + r.name }

func parseObjectKey(key string) (ref, bool) {
	kind, name, ok := strings.Cut(strings.TrimPrefix(key, dirObjects), "/")
	return ref{lb.Kind(kind), name}, ok
}

func stateKey(k lb.EndpointKey) string { return dirStates + plan.FormatKey(k) }
