package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
)

// minPassphrase is the minimum length of a passphrase, in bytes, because short ones can be found by
// brute force.
const minPassphrase = 12

// sealedPrefix is the prefix of every file of age.
const sealedPrefix = "age-encryption.org/"

// ErrSealed: the backup is encrypted and no key for it was given.
var ErrSealed = errors.New("is encrypted: a passphrase or an identity is needed")

// Lock holds the recipients that a backup is encrypted for; the zero Lock does not encrypt.
type Lock struct{ recipients []age.Recipient }

// Unlock holds the keys that open encrypted backups; the zero Unlock opens none.
type Unlock struct{ identities []age.Identity }

// PassphraseLock encrypts with a passphrase, the first line of text. No error contains it.
func PassphraseLock(text string) (Lock, error) {
	p, err := passphrase(text)
	if err != nil {
		return Lock{}, err
	}
	r, err := age.NewScryptRecipient(p)
	return Lock{[]age.Recipient{r}}, err
}

// PassphraseUnlock opens backups of PassphraseLock.
func PassphraseUnlock(text string) (Unlock, error) {
	p, err := passphrase(text)
	if err != nil {
		return Unlock{}, err
	}
	i, err := age.NewScryptIdentity(p)
	return Unlock{[]age.Identity{i}}, err
}

func passphrase(text string) (string, error) {
	line, rest, _ := strings.Cut(text, "\n")
	line = strings.TrimSuffix(line, "\r")
	if strings.TrimSpace(rest) != "" {
		return "", errors.New("passphrase: must be one line")
	}
	if len(line) < minPassphrase {
		return "", fmt.Errorf("passphrase: %d bytes: must be at least %d", len(line), minPassphrase)
	}
	return line, nil
}

// RecipientLock encrypts for all owners of the public keys in text: "age1…", one a line, with
// comments after #.
func RecipientLock(text string) (Lock, error) {
	r, err := age.ParseRecipients(strings.NewReader(text))
	if err != nil {
		return Lock{}, fmt.Errorf("recipients: %w", err)
	}
	return Lock{r}, nil
}

// IdentityUnlock opens backups with the private keys in text, in the format of age-keygen. No error
// contains them.
func IdentityUnlock(text string) (Unlock, error) {
	i, err := age.ParseIdentities(strings.NewReader(text))
	if err != nil {
		// The library's error may quote the line.
		return Unlock{}, errors.New("identities: must be lines AGE-SECRET-KEY-…, as age-keygen writes them")
	}
	return Unlock{i}, nil
}

// None reports whether the lock does not encrypt.
func (l Lock) None() bool { return len(l.recipients) == 0 }

// Seal encrypts content.
func (l Lock) Seal(w io.Writer, content []byte) error {
	if l.None() {
		_, err := w.Write(content)
		return err
	}
	sealed, err := age.Encrypt(w, l.recipients...)
	if err != nil {
		return fmt.Errorf("encrypt backup: %w", err)
	}
	if _, err = sealed.Write(content); err == nil {
		err = sealed.Close()
	}
	if err != nil {
		return fmt.Errorf("encrypt backup: %w", err)
	}
	return nil
}

// Sealed reports whether content is encrypted.
func Sealed(content []byte) bool { return bytes.HasPrefix(content, []byte(sealedPrefix)) }

// Open decrypts content; unencrypted content is returned unchanged.
func (u Unlock) Open(content []byte) ([]byte, error) {
	if !Sealed(content) {
		return content, nil
	}
	if len(u.identities) == 0 {
		return nil, ErrSealed
	}
	open, err := age.Decrypt(bytes.NewReader(content), u.identities...)
	if errors.As(err, new(*age.NoIdentityMatchError)) {
		return nil, errors.New("cannot be decrypted: the passphrase or identity is not the one that it was encrypted for")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: its encryption: %w", ErrDamaged, err)
	}
	var plain bytes.Buffer
	plain.Grow(len(content))
	if _, err := plain.ReadFrom(open); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: its encryption ends too early", ErrTruncated)
		}
		return nil, fmt.Errorf("%w: its encryption after %d bytes: %w", ErrDamaged, plain.Len(), err)
	}
	return plain.Bytes(), nil
}
