package manager

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/backup"
	"github.com/shuntlb/shunt/internal/pki"
)

// NewSecrets returns an archive with the same state and other secrets: another CA, and another key
// that seals keys in the store. In a cluster restored from it, everything made with the previous
// secrets is useless: certificates of managers, nodes and people, session tickets, join tokens,
// access tokens. The previous secrets do not open the keys that the store seals from then on. Ring
// keys, keys of cookies and of connection ids are the same, sealed again, so that connections stay.
// name is in the CA's certificate. a is not modified.
func NewSecrets(a *backup.Archive, name string, now time.Time) (*backup.Archive, error) {
	if err := CheckBackup(a); err != nil {
		return nil, err
	}
	former, err := archiveSecrets(a)
	if err != nil {
		return nil, err
	}
	ca, err := pki.NewCA(name, now)
	if err != nil {
		return nil, err
	}
	storeKey := make([]byte, storeKeyBytes)
	rand.Read(storeKey)
	next, err := newSecrets(ca, storeKey)
	if err != nil {
		return nil, err
	}
	out := &backup.Archive{Header: a.Header, Secrets: backup.Secrets{CA: ca.CertPEM(), StoreKey: storeKey}}
	if out.Secrets.CAKey, err = ca.KeyPEM(); err != nil {
		return nil, err
	}
	for _, k := range a.Keys {
		switch {
		case strings.HasPrefix(k.Name, dirTokens), strings.HasPrefix(k.Name, dirAccess), strings.HasPrefix(k.Name, dirRevoked), k.Name == keyCAChange:
			continue // of the previous CA, or readable by anyone who had the store
		case k.Name == keyCA:
			k.Value = ca.CertPEM()
		case strings.HasPrefix(k.Name, dirRingKeys):
			key, err := former.openKey(k.Name, k.Value)
			if err != nil {
				return nil, err
			}
			if k.Value, err = next.sealKey(k.Name, key); err != nil {
				return nil, err
			}
		case isKeySet(k.Name):
			set, err := former.openKeySet(k.Name, k.Value)
			if err != nil {
				return nil, fmt.Errorf("key %s: %w", k.Name, err)
			}
			if k.Value, err = next.sealKeySet(k.Name, &set); err != nil {
				return nil, err
			}
		}
		out.Keys = append(out.Keys, k)
	}
	hash := ca.Hash()
	out.Header.Cluster, out.Header.CA = name, hex.EncodeToString(hash[:])
	out.Header.Keys, out.Header.Counts = len(out.Keys), countKeys(out.Keys)
	return out, CheckBackup(out)
}
