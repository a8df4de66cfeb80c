package quiclb

import (
	"crypto/hmac"
	"crypto/sha256"
)

// ResetKey derives the key of a configuration's stateless reset tokens (RFC 9000 section 10.3) from
// a secret that the server keeps across restarts. Each configuration has its own key
// (draft-ietf-quic-load-balancers-21, section 9.5), because under another key the same CID may be
// made again for another client, which must not get the token of the earlier one. The secret must
// be held by the processes of this server only, and have 16 bytes or more.
//
// A quic.Transport of quic-go uses one such key during its lifetime,
// quic.StatelessResetKey(config.ResetKey(secret)): pass the newest configuration's key when it
// starts. It then has no tokens for CIDs that an earlier process made under another configuration;
// their connections end by their idle timeout.
func (c Config) ResetKey(secret []byte) [32]byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("shunt quiclb stateless reset"))
	h.Write([]byte{c.ID, byte(len(c.Format)), byte(len(c.ServerID)), byte(c.Scheme().NonceLength)})
	h.Write([]byte(c.Format))
	h.Write(c.Key[:])
	h.Write(c.ServerID)
	return [32]byte(h.Sum(nil))
}

// ResetToken returns the stateless reset token of a connection id, under the key of the
// configuration that the id names, for libraries that request the token of each CID. It equals the
// token that quic-go computes with that key. False: the id belongs to none of these configurations.
func (cs Configs) ResetToken(secret, cid []byte) (token [16]byte, ok bool) {
	for _, c := range cs {
		s := c.Scheme()
		if len(cid) != s.Length() || (c.Format == QUICLB || c.Format == Plain) && cid[0]>>5 != c.ID {
			continue
		}
		key := c.ResetKey(secret)
		h := hmac.New(sha256.New, key[:])
		h.Write(cid)
		return [16]byte(h.Sum(nil)), true
	}
	return token, false
}
