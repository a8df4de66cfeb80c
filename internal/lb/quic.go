package lb

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"
)

// QUIC is the format of the connection ids of an endpoint's servers: the member id is in the
// topmost 12 bits of the server id.
type QUIC struct {
	// Format is one of QUICLB, QUICLBPlain, QUICMsquic, QUICMvfst, QUICNone.
	Format string
	// ServerIDLength and NonceLength are in bytes, only for the formats of QUIC-LB; 0 for others.
	ServerIDLength, NonceLength uint8
}

// Formats of connection ids. QUICLB and QUICLBPlain are those of draft-ietf-quic-load-balancers-21
// section 5, encrypted and not; QUICMsquic that of msquic with a fixed server id of 4 bytes,
// QUICMvfst that of mvfst in its versions 1 to 3. QUICNone: ids are ignored and packets are
// balanced by addresses and ports.
const (
	QUICLB      = "quiclb"
	QUICLBPlain = "quiclb-plain"
	QUICMsquic  = "msquic"
	QUICMvfst   = "mvfst"
	QUICNone    = "none"
)

var quicFormats = []string{QUICLB, QUICLBPlain, QUICMsquic, QUICMvfst, QUICNone}

// Lengths of QUIC-LB in bytes. With the defaults a connection id has 17 bytes, and one block of AES
// makes it.
const (
	DefaultServerIDLength = 3
	DefaultNonceLength    = 13
	// MinServerIDLength has room for a member id.
	MinServerIDLength = 2
	MaxServerIDLength = 15
	MinNonceLength    = 4
	MaxNonceLength    = 18
	// MaxServerIDAndNonce limits their sum: a connection id has 20 bytes (RFC 9000 section 17.2),
	// and the first one belongs to neither.
	MaxServerIDAndNonce = 19

	allowedServerIDLength = "must be 2 to 15"
	allowedNonceLength    = "must be 4 to 18"
	allowedFormat         = "must be quiclb, quiclb-plain, msquic, mvfst or none"
)

// Equal reports whether both are equal or both nil.
func (q *QUIC) Equal(o *QUIC) bool { return q == o || q != nil && o != nil && *q == *o }

// HasLengths reports whether the format has configurable lengths.
func (q *QUIC) HasLengths() bool { return q.Format == QUICLB || q.Format == QUICLBPlain }

// Keyed reports whether connection ids are encrypted.
func (q *QUIC) Keyed() bool { return q.Format == QUICLB }

// CIDLength returns the length of a server's connection ids in bytes; 0: it is not configured.
func (q *QUIC) CIDLength() int {
	switch {
	case q.HasLengths():
		return 1 + int(q.ServerIDLength) + int(q.NonceLength)
	case q.Format == QUICMsquic:
		return 14
	}
	return 0
}

// setDefaults sets the format and, if it has them, its lengths; affinity is the configured one.
func (q *QUIC) setDefaults(affinity string) {
	if affinity == AffinityFlow || affinity == AffinityHash {
		setDefault(&q.Format, QUICNone)
	}
	setDefault(&q.Format, QUICLB)
	if q.HasLengths() {
		setDefault(&q.ServerIDLength, DefaultServerIDLength)
		setDefault(&q.NonceLength, DefaultNonceLength)
	}
}

// flow returns the format on one line.
func (q *QUIC) flow() string {
	lengths := ""
	if q.HasLengths() {
		lengths = fmt.Sprintf(", serverIdLength: %d, nonceLength: %d", q.ServerIDLength, q.NonceLength)
	}
	return "{format: " + quote(q.Format) + lengths + "}"
}

// String returns the format for messages, as in "quiclb, 17-byte ids".
func (q *QUIC) String() string {
	if n := q.CIDLength(); n > 0 {
		return fmt.Sprintf("%s, %d-byte ids", q.Format, n)
	}
	return q.Format
}

func (d *decoder) quic(path string, n ast.Node) *QUIC {
	q := &QUIC{}
	d.mapping(path, n,
		field{"format", func(p string, n ast.Node) { q.Format = d.given(p, n, allowedFormat) }},
		field{"serverIdLength", func(p string, n ast.Node) { q.ServerIDLength = d.positive(p, n, allowedServerIDLength) }},
		field{"nonceLength", func(p string, n ast.Node) { q.NonceLength = d.positive(p, n, allowedNonceLength) }},
	)
	return q
}

// quic checks the format of servers' connection ids.
func (f *faults) quic(path string, e *Endpoint) {
	q := e.QUIC
	if q == nil {
		return
	}
	at := path + ".quic"
	if e.Protocol != UDP {
		f.add(at, q.Format, "must be left out with protocol "+e.Protocol.String()+": only quic has connection ids")
		return
	}
	f.choice(at+".format", q.Format, nil, quicFormats...)
	switch none := q.Format == QUICNone; {
	case none && e.Cookies():
		f.add(path+".affinity", e.Affinity, "must be flow or hash with quic.format none: no connection id is read")
	case !none && !e.Cookies() && !f.has(at+".format") && !f.has(path+".affinity"):
		f.add(at+".format", q.Format, "must be none with affinity "+e.Affinity+": connection ids are read with affinity cookie")
	}
	if e.OnePacket {
		f.add(path+".onePacket", "true", "must be false with protocol quic, which has connections")
	}
	if !q.HasLengths() {
		if q.ServerIDLength != 0 {
			f.add(at+".serverIdLength", fmt.Sprint(q.ServerIDLength), "must be left out with format "+q.Format+": only quiclb and quiclb-plain have lengths")
		}
		if q.NonceLength != 0 {
			f.add(at+".nonceLength", fmt.Sprint(q.NonceLength), "must be left out with format "+q.Format+": only quiclb and quiclb-plain have lengths")
		}
		return
	}
	if q.ServerIDLength < MinServerIDLength || q.ServerIDLength > MaxServerIDLength {
		f.add(at+".serverIdLength", fmt.Sprint(q.ServerIDLength), allowedServerIDLength)
	}
	switch sum := int(q.ServerIDLength) + int(q.NonceLength); {
	case q.NonceLength < MinNonceLength || q.NonceLength > MaxNonceLength:
		f.add(at+".nonceLength", fmt.Sprint(q.NonceLength), allowedNonceLength)
	case sum > MaxServerIDAndNonce && !f.has(at+".serverIdLength"):
		f.add(at+".nonceLength", fmt.Sprint(q.NonceLength), fmt.Sprintf("must be at most %d with serverIdLength %d: both have %d bytes",
			MaxServerIDAndNonce-int(q.ServerIDLength), q.ServerIDLength, MaxServerIDAndNonce))
	}
}

// ServerID returns the server id of a member before encryption: the member id in the first 12 bits,
// then zeros, which the server may replace to number its own processes. For QUICMvfst it has the 3
// bytes of version 2; q must not be QUICNone.
func (q *QUIC) ServerID(member uint16) []byte {
	n := int(q.ServerIDLength)
	switch q.Format {
	case QUICMsquic:
		n = 4
	case QUICMvfst:
		n = 3
	}
	id := make([]byte, n)
	id[0], id[1] = byte(member>>4), byte(member<<4)
	return id
}
