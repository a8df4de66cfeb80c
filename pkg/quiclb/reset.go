package quiclb

import (
	"crypto/hmac"
	"crypto/sha256"
)

// ResetKey derives the key of a configuration's stateless reset tokens (RFC 9000 section 10.3) from a secret that the server keeps over restarts. Each
// configuration has its own (draft-ietf-quic-load-balancers-21, section 9.5): under another key the same CID may be made again for somebody else, who must not get the
// token of the former one. The secret must be known to the processes of this server alone, and be 16 bytes or longer.
//
// A quic.Transport of quic-go takes one such key for its life, quic.StatelessResetKey(config.ResetKey(secret)): take the newest configuration's when it starts. Tokens of
// CIDs that an earlier process made under another configuration are not known to it then, and their connections end by their idle timeout.
func (c Config) ResetKey(secret []byte) [32]byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("shunt quiclb stateless reset"))
	h.Write([]byte{c.ID, byte(len(c.Format)), byte(len(c.ServerID)), byte(c.Scheme().NonceLength)})
	h.Write([]byte(c.Format))
	h.Write(c.Key[:])
	h.Write(c.ServerID)
	return [32]byte(h.Sum(nil))
}

// ResetToken is the stateless reset token of a connection id, under the key of the configuration that the id names, for libraries that ask for the token of each
// CID. It is what quic-go makes with that key. False: the id is of none of these configurations.
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
