package pki

import (
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
)

// sealInfo separates this use of a key exchange from others.
const sealInfo = "shunt sealed for a manager"

// errSealed means that a message was sealed for another key or another purpose, or changed.
var errSealed = errors.New("open sealed secrets: they are sealed for another key, or damaged")

// SealFor encrypts a message for the owner of the private key of an ECDSA public key
// (SubjectPublicKeyInfo, DER): ECDH with a new key, HKDF-SHA-256, AES-256-GCM. Open needs the same
// bound.
func SealFor(public, message, bound []byte) ([]byte, error) {
	parsed, err := x509.ParsePKIXPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("seal: public key: %w", err)
	}
	to, ok := parsed.(*ecdsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("seal: public key: %T: must be ECDSA", parsed)
	}
	peer, err := to.ECDH()
	if err != nil {
		return nil, fmt.Errorf("seal: public key: %w", err)
	}
	own, err := peer.Curve().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	box, err := sealer(own, peer, own.PublicKey(), peer)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	// A constant nonce is safe, because the key is used once.
	return box.Seal(own.PublicKey().Bytes(), make([]byte, box.NonceSize()), message, bound), nil
}

// Open decrypts a message of SealFor with the private key.
func Open(key crypto.Signer, sealed, bound []byte) ([]byte, error) {
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("open sealed secrets: key: %T: must be ECDSA", key)
	}
	own, err := private.ECDH()
	if err != nil {
		return nil, fmt.Errorf("open sealed secrets: %w", err)
	}
	n := len(own.PublicKey().Bytes())
	if len(sealed) < n {
		return nil, errSealed
	}
	peer, err := own.Curve().NewPublicKey(sealed[:n])
	if err != nil {
		return nil, errSealed
	}
	box, err := sealer(own, peer, peer, own.PublicKey())
	if err != nil {
		return nil, err
	}
	message, err := box.Open(nil, make([]byte, box.NonceSize()), sealed[n:], bound)
	if err != nil {
		return nil, errSealed
	}
	return message, nil
}

// sealer returns the cipher that both sides of a key exchange derive.
func sealer(own *ecdh.PrivateKey, peer, from, to *ecdh.PublicKey) (cipher.AEAD, error) {
	secret, err := own.ECDH(peer)
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Key(sha256.New, secret, append(from.Bytes(), to.Bytes()...), sealInfo, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// PublicKey returns the public key of a private one, in the form that SealFor reads.
func PublicKey(key crypto.Signer) ([]byte, error) { return x509.MarshalPKIXPublicKey(key.Public()) }
