package manager

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/backup"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
)

// secrets holds the secrets of the data directory, which are kept outside the store.
type secrets struct {
	// old: an earlier start made them.
	old bool

	mu sync.RWMutex
	// generations holds the current generation, which signs and seals. While the CA is replaced it
	// also holds the other one: previous or next.
	generations []*generation
}

// generation is a CA and the key that seals the store's secrets. Both are replaced together.
type generation struct {
	ca     *pki.CA
	sealer cipher.AEAD
	// storeKey is the key of sealer.
	storeKey []byte
}

// all returns the generations, the current one first.
func (s *secrets) all() []*generation {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.generations
}

// present returns the generation that signs and seals.
func (s *secrets) present() *generation { return s.all()[0] }

// ca returns the CA that signs.
func (s *secrets) ca() *pki.CA { return s.present().ca }

// storeKey returns the key that seals.
func (s *secrets) storeKey() []byte { return s.present().storeKey }

// cas returns the certificates of all CAs that are trusted, the one that signs first.
func (s *secrets) cas() (out []*x509.Certificate) {
	for _, g := range s.all() {
		out = append(out, g.ca.Cert)
	}
	return out
}

// set replaces the generations.
func (s *secrets) set(generations []*generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generations = generations
}

// open decrypts a value sealed by any generation.
func (s *secrets) open(nonce, sealed, bound []byte) (plain []byte, err error) {
	for _, g := range s.all() {
		if len(nonce) != g.sealer.NonceSize() {
			return nil, fmt.Errorf("nonce: %d bytes: must be %d", len(nonce), g.sealer.NonceSize())
		}
		if plain, err = g.sealer.Open(nil, nonce, sealed, bound); err == nil {
			return plain, nil
		}
	}
	return nil, errOtherKey
}

// errOtherKey: a value of the store was sealed by another cluster, or is damaged.
var errOtherKey = errors.New("it was sealed with another key than pki/store.key")

// storeKeyBytes is the size of the key that seals the store's secrets (AES-256).
const storeKeyBytes = 32

// loadSecrets reads the CA and the key that seals the store's secrets, and creates both at the
// first start. If used is true, missing files are an error, because the store is unreadable without
// its key and a new CA would lock out every node.
func loadSecrets(dir *DataDir, name string, used bool, now time.Time) (*secrets, error) {
	if s, err := loadGenerations(dir); s != nil || err != nil {
		return s, err
	}
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
	g, err := newGeneration(ca, storeKey)
	return &secrets{generations: []*generation{g}}, err
}

func newGeneration(ca *pki.CA, storeKey []byte) (*generation, error) {
	if len(storeKey) != storeKeyBytes {
		return nil, fmt.Errorf("%d bytes: must be %d bytes", len(storeKey), storeKeyBytes)
	}
	block, err := aes.NewCipher(storeKey)
	if err != nil {
		return nil, err
	}
	sealer, err := cipher.NewGCM(block)
	return &generation{ca: ca, sealer: sealer, storeKey: storeKey}, err
}

// archiveSecrets returns the secrets of a backup archive.
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
	sealer := s.present().sealer
	nonce := make([]byte, sealer.NonceSize())
	rand.Read(nonce)
	return proto.Marshal(&apiv1.StoredKey{Id: k.ID, Nonce: nonce, Sealed: sealer.Seal(nil, nonce, k.Key[:], []byte(storeKey))})
}

// openKey decrypts a value written by sealKey.
func (s *secrets) openKey(storeKey string, value []byte) (plan.Key, error) {
	var stored apiv1.StoredKey
	if err := proto.Unmarshal(value, &stored); err != nil {
		return plan.Key{}, fmt.Errorf("read %s: %w", storeKey, err)
	}
	plain, err := s.open(stored.GetNonce(), stored.GetSealed(), []byte(storeKey))
	k := plan.Key{ID: stored.GetId()}
	if err == nil && copy(k.Key[:], plain) != len(k.Key) {
		err = errOtherKey
	}
	if err != nil {
		return plan.Key{}, fmt.Errorf("read %s: %w", storeKey, err)
	}
	return k, nil
}

// sealKeySet encrypts keys for the store, each bound to its store key and epoch.
func (s *secrets) sealKeySet(storeKey string, set *plan.KeySet) ([]byte, error) {
	sealer := s.present().sealer
	out := &apiv1.StoredKeySet{Phase: string(set.Phase), Since: timestamppb.New(set.Since), Service: set.Service}
	for _, k := range set.Keys {
		nonce := make([]byte, sealer.NonceSize())
		rand.Read(nonce)
		out.Keys = append(out.Keys, &apiv1.StoredSetKey{
			Epoch: k.Epoch, Nonce: nonce, Sealed: sealer.Seal(nil, nonce, k.Key[:], epochData(storeKey, k.Epoch)), Made: timestamppb.New(k.Made), Shuffled: k.Shuffled,
		})
	}
	return proto.Marshal(out)
}

func epochData(storeKey string, epoch uint32) []byte {
	return fmt.Appendf(nil, "%s/%d", storeKey, epoch)
}

// openKeySet decrypts a value written by sealKeySet.
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
		plain, err := s.open(k.GetNonce(), k.GetSealed(), epochData(storeKey, k.GetEpoch()))
		key := plan.SetKey{Epoch: k.GetEpoch(), Made: k.GetMade().AsTime(), Shuffled: k.GetShuffled()}
		if err == nil && copy(key.Key[:], plain) != len(key.Key) {
			err = errOtherKey
		}
		if err != nil {
			return set, err
		}
		set.Keys = append(set.Keys, key)
	}
	return set, nil
}
