package manager

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
)

// generationsFile in pki/ holds two generations of secrets while the CA is replaced. While it
// exists, ca.crt, ca.key and store.key are ignored, so that the swap of the generations and the
// removal of the previous one are atomic.
const generationsFile = "generations"

// loadGenerations reads the secrets of a manager that stopped while the CA was replaced. It returns
// nil if there is no such file.
func loadGenerations(dir *DataDir) (*secrets, error) {
	path := dir.pki(generationsFile)
	content, err := readFile(path)
	if content == nil || err != nil {
		return nil, err
	}
	var stored apiv1.StoredSecrets
	if err := proto.Unmarshal(content, &stored); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	s := &secrets{old: true}
	for _, g := range stored.GetGenerations() {
		ca, err := pki.ParseCA(g.GetCa(), g.GetCaKey())
		if err != nil {
			return nil, fmt.Errorf("read %s: CA: %w", path, err)
		}
		one, err := newGeneration(ca, g.GetStoreKey())
		if err != nil {
			return nil, fmt.Errorf("read %s: store key: %w", path, err)
		}
		s.generations = append(s.generations, one)
	}
	if len(s.generations) == 0 {
		return nil, fmt.Errorf("read %s: it has no secrets", path)
	}
	return s, nil
}

// keep writes generations, the one that signs first, and makes them those in use.
func (s *secrets) keep(dir *DataDir, generations ...*generation) error {
	stored := &apiv1.StoredSecrets{}
	for _, g := range generations {
		key, err := g.ca.KeyPEM()
		if err != nil {
			return err
		}
		stored.Generations = append(stored.Generations, &apiv1.StoredGeneration{Ca: g.ca.CertPEM(), CaKey: key, StoreKey: g.storeKey})
	}
	content, err := proto.Marshal(stored)
	if err != nil {
		return err
	}
	if err := writeFile(dir.pki(generationsFile), content); err != nil {
		return fmt.Errorf("write secrets: %w", err)
	}
	s.set(generations)
	return nil
}

// settle makes the generation that signs the only one, in the files that every build reads.
func (s *secrets) settle(dir *DataDir) error {
	g := s.present()
	key, err := g.ca.KeyPEM()
	if err != nil {
		return err
	}
	for _, file := range []struct {
		name    string
		content []byte
	}{{"store.key", g.storeKey}, {"ca.key", key}, {"ca.crt", g.ca.CertPEM()}} {
		if err := writeFile(dir.pki(file.name), file.content); err != nil {
			return fmt.Errorf("write %s: %w", file.name, err)
		}
	}
	if err := os.Remove(dir.pki(generationsFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove former secrets: %w", err)
	}
	if err := syncDir(dir.pki("")); err != nil {
		return err
	}
	s.set([]*generation{g})
	return nil
}

// generationOf returns the generation of a CA, or nil if there is none.
func (s *secrets) generationOf(ca []byte) *generation {
	for _, g := range s.all() {
		if bytes.Equal(g.ca.Cert.Raw, ca) {
			return g
		}
	}
	return nil
}
