package manager

import (
	"strings"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// Keys of the store. Everything is under root.
const (
	root      = "/shunt/"
	keySchema = root + "schema" // read by foldSchemaLocked
	keyLeader = root + "leader" // StoredLeader, on the leader's lease
	keyEpoch  = root + "epoch"  // the last epoch, permanent
	keyCA     = root + "ca"     // the certificate of the CA that the store belongs to, PEM
	// StoredCAChange, the replacement of the CA that is in progress or was the last
	keyCAChange = root + "ca-change"
	// epoch of the last restore. Revisions of earlier epochs are meaningless.
	keyRestored = root + "restored"
	// written by every write, so that two writes never commit from one snapshot
	keySerial   = root + "serial"
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

// key returns "objects/Kind/name". Names hold no slash, because they were validated.
func (r ref) key() string { return dirObjects + string(r.kind) + "/" + r.name }

func parseObjectKey(key string) (ref, bool) {
	kind, name, ok := strings.Cut(strings.TrimPrefix(key, dirObjects), "/")
	return ref{lb.Kind(kind), name}, ok
}

func stateKey(k lb.EndpointKey) string { return dirStates + plan.FormatKey(k) }
