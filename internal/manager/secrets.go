package manager

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/backup"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
)

// secrets are what the data directory holds beside the store.
type secrets struct {
	ca     *pki.CA
	sealer cipher.AEAD
	// storeKey is what the sealer is made of.
	storeKey []byte
	// old: an earlier start made them.
	old bool
}

// storeKeyBytes is the size of the key that seals the store's secrets (AES-256).
const storeKeyBytes = 32

// loadSecrets reads the CA and the key that seals the store's secrets, and makes both at the first start. A store that
// was used already belongs to them: without them it is of no use, and others would shut out every node.
func loadSecrets(dir *DataDir, name string, used bool, now time.Time) (*secrets, error) {
	for _, file := range secretFiles {
		if _, err := os.Stat(dir.pki(file)); used && errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: is missing: restore it from a backup of the data directory", dir.pki(file))
		}
	}
	ca, err := loadCA(dir, name, now)
	if err != nil {
		return nil, err
	}
	path := dir.pki("store.key")
	key, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read store key: %w", err)
	}
	if key == nil {
		dir.made = true
		key = make([]byte, storeKeyBytes)
		rand.Read(key)
		if err := writeFile(path, key); err != nil {
			return nil, fmt.Errorf("write store key: %w", err)
		}
	}
	s, err := newSecrets(ca, key)
	if err != nil {
		return nil, fmt.Errorf("read store key %s: %w", path, err)
	}
	s.old = !dir.made
	return s, nil
}

func newSecrets(ca *pki.CA, storeKey []byte) (*secrets, error) {
	if len(storeKey) != storeKeyBytes {
		return nil, fmt.Errorf("%d bytes: must be %d bytes", len(storeKey), storeKeyBytes)
	}
	block, err := aes.NewCipher(storeKey)
	if err != nil {
		return nil, err
	}
	sealer, err := cipher.NewGCM(block)
	return &secrets{ca: ca, sealer: sealer, storeKey: storeKey}, err
}

// archiveSecrets are those of an archive.
func archiveSecrets(a *backup.Archive) (*secrets, error) {
	ca, err := pki.ParseCA(a.Secrets.CA, a.Secrets.CAKey)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	s, err := newSecrets(ca, a.Secrets.StoreKey)
	if err != nil {
		return nil, fmt.Errorf("store key: %w", err)
	}
	return s, nil
}

func loadCA(dir *DataDir, name string, now time.Time) (*pki.CA, error) {
	key, err := readFile(dir.pki("ca.key"))
	if err != nil {
		return nil, fmt.Errorf("read CA key: %w", err)
	}
	cert, err := readFile(dir.pki("ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read CA certificate: %w", err)
	}
	if cert != nil {
		ca, err := pki.ParseCA(cert, key)
		if err != nil {
			return nil, fmt.Errorf("read CA in %s: %w", dir.pki(""), err)
		}
		return ca, nil
	}
	ca, err := pki.NewCA(name, now)
	if err != nil {
		return nil, err
	}
	if key, err = ca.KeyPEM(); err != nil {
		return nil, err
	}
	// The certificate is written last: while it is absent, the CA was never used.
	if err := errors.Join(writeFile(dir.pki("ca.key"), key), writeFile(dir.pki("ca.crt"), ca.CertPEM())); err != nil {
		return nil, fmt.Errorf("write CA: %w", err)
	}
	return ca, nil
}

// sealKey encrypts a ring key for the store, bound to its store key.
func (s *secrets) sealKey(storeKey string, k plan.Key) ([]byte, error) {
	nonce := make([]byte, s.sealer.NonceSize())
	rand.Read(nonce)
	return proto.Marshal(&apiv1.StoredKey{Id: k.ID, Nonce: nonce, Sealed: s.sealer.Seal(nil, nonce, k.Key[:], []byte(storeKey))})
}

// openKey decrypts what sealKey wrote.
func (s *secrets) openKey(storeKey string, value []byte) (plan.Key, error) {
	var stored apiv1.StoredKey
	if err := proto.Unmarshal(value, &stored); err != nil {
		return plan.Key{}, fmt.Errorf("read %s: %w", storeKey, err)
	}
	if len(stored.GetNonce()) != s.sealer.NonceSize() {
		return plan.Key{}, fmt.Errorf("read %s: nonce: %d bytes: must be %d", storeKey, len(stored.GetNonce()), s.sealer.NonceSize())
	}
	plain, err := s.sealer.Open(nil, stored.GetNonce(), stored.GetSealed(), []byte(storeKey))
	k := plan.Key{ID: stored.GetId()}
	if err != nil || copy(k.Key[:], plain) != len(k.Key) {
		return plan.Key{}, fmt.Errorf("read %s: it was sealed with another key than pki/store.key", storeKey)
	}
	return k, nil
}

// sealKeySet encrypts keys for the store, each bound to its store key and epoch.
func (s *secrets) sealKeySet(storeKey string, set *plan.KeySet) ([]byte, error) {
	out := &apiv1.StoredKeySet{Phase: string(set.Phase), Since: timestamppb.New(set.Since), Service: set.Service}
	for _, k := range set.Keys {
		nonce := make([]byte, s.sealer.NonceSize())
		rand.Read(nonce)
		out.Keys = append(out.Keys, &apiv1.StoredSetKey{
			Epoch: k.Epoch, Nonce: nonce, Sealed: s.sealer.Seal(nil, nonce, k.Key[:], epochData(storeKey, k.Epoch)), Made: timestamppb.New(k.Made),
		})
	}
	return proto.Marshal(out)
}

func epochData(storeKey string, epoch uint32) []byte {
	return fmt.Appendf(nil, "%s/%d", storeKey, epoch)
}

// openKeySet decrypts what sealKeySet wrote.
func (s *secrets) openKeySet(storeKey string, value []byte) (plan.KeySet, error) {
	var stored apiv1.StoredKeySet
	if err := proto.Unmarshal(value, &stored); err != nil {
		return plan.KeySet{}, err
	}
	set := plan.KeySet{Phase: plan.KeyPhase(stored.GetPhase()), Since: stored.GetSince().AsTime(), Service: stored.GetService()}
	if n := len(stored.GetKeys()); n < 1 || n > 2 {
		return set, fmt.Errorf("%d keys: must be one or two", n)
	}
	for _, k := range stored.GetKeys() {
		if len(k.GetNonce()) != s.sealer.NonceSize() {
			return set, fmt.Errorf("nonce: %d bytes: must be %d", len(k.GetNonce()), s.sealer.NonceSize())
		}
		plain, err := s.sealer.Open(nil, k.GetNonce(), k.GetSealed(), epochData(storeKey, k.GetEpoch()))
		key := plan.SetKey{Epoch: k.GetEpoch(), Made: k.GetMade().AsTime()}
		if err != nil || copy(key.Key[:], plain) != len(key.Key) {
			return set, errors.New("it was sealed with another key than pki/store.key")
		}
		set.Keys = append(set.Keys, key)
	}
	return set, nil
}
