package manager

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"connectrpc.com/connect"
)

// Headers between managers. They are removed from every request of other clients.
const (
	// headerCaller holds the identity on whose behalf a manager forwards a request.
	headerCaller = "Shunt-Caller"
	// headerRevision of a response is a revision that includes all effects of the request.
	headerRevision = "Shunt-Revision"
	// headerNotLeading marks the response of a manager that did nothing because it does not lead.
	headerNotLeading = "Shunt-Not-Leading"
)

// caller is an identity that a manager forwards to the leader.
type caller struct {
	Name    string    `json:"name,omitempty"`
	Role    string    `json:"role,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Via     string    `json:"via,omitempty"`
	From    string    `json:"from,omitempty"`
	Token   string    `json:"token,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
	Cert    []byte    `json:"cert,omitempty"`
}

// header returns the identity encoded for headerCaller.
func (id identity) header() (string, error) {
	c := caller{Name: id.name, Role: id.role, Tenant: id.tenant, Via: id.via, From: id.from, Token: id.access, Expires: id.expires}
	if id.cert != nil {
		c.Cert = id.cert.Raw
	}
	content, err := json.Marshal(c)
	return base64.StdEncoding.EncodeToString(content), err
}

var errBadCaller = connect.NewError(connect.CodePermissionDenied, errors.New(headerCaller+": cannot be read: the managers' versions differ"))

// callerOf decodes the output of header, which another version may have written. A version from
// before people's certificates had ids and expiry dates sends only the certificate, which is
// sufficient. A credential without an expiry date or of an unknown kind is refused, because its
// validity cannot be determined.
func callerOf(header string) (identity, *connect.Error) {
	content, err := base64.StdEncoding.DecodeString(header)
	var c caller
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err != nil {
		return identity{}, errBadCaller
	}
	id := identity{name: c.Name, role: c.Role, tenant: c.Tenant, via: c.Via, from: c.From, access: c.Token, expires: c.Expires}
	switch {
	case c.Via == viaCertificate && c.Cert != nil:
		cert, err := x509.ParseCertificate(c.Cert)
		if err != nil {
			return identity{}, errBadCaller
		}
		return certified(cert, c.From), nil
	case c.Via == viaToken && c.Token != "", c.Via == viaOIDC && !c.Expires.IsZero():
		return id, nil
	case c.Via == "" && c.Name == "" && c.Role == "":
		return identity{from: c.From}, nil
	}
	return identity{}, errBadCaller
}
