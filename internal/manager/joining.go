package manager

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/token"
)

// admitTimeout bounds one attempt to join: the store may have to agree on the new member first.
const admitTimeout = 15 * time.Second

// joinPause is the time between two attempts to join while another manager is joining.
const joinPause = time.Second

// Joined holds the store settings of an admitted manager.
type Joined struct {
	// Cluster lists the members of the store as "name=https://host:port", including this one.
	Cluster []string
	// Outside reports whether the store is an external etcd.
	Outside bool
}

// Join adds the data directory to an existing cluster. It presents a token of role manager to a
// member at one of the addresses (host:port) and writes the cluster's secrets and this manager's
// certificate. It must run before the store is opened and may be repeated until then. While another
// manager joins, it waits until ctx ends or the token expires. Of the options it needs Dir, Name,
// Peer and the addresses of this manager.
func Join(ctx context.Context, o Options, t token.Token, addresses ...string) (*Joined, error) {
	o.fill()
	if err := joinable(o.Dir, t); err != nil {
		return nil, err
	}
	key, err := loadManagerKey(o.Dir)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: o.Name}}, key)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	for {
		res, err := admission(ctx, o, t, csr, addresses)
		if err == nil {
			return adopt(o, t, res)
		}
		if connect.CodeOf(err) != connect.CodeAborted {
			return nil, err
		}
		o.Log.Info("another manager is joining; waits for its end", "error", err)
		select {
		case <-o.Clock.After(joinPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// admission sends the request to the addresses in turn. It returns a single error of code Aborted
// if the caller must retry.
func admission(ctx context.Context, o Options, t token.Token, csr []byte, addresses []string) (*apiv1.AdmitResponse, error) {
	req := &apiv1.AdmitRequest{Token: t.String(), Name: o.Name, Address: apiAddress(o), Peer: o.Peer, Csr: csr}
	var failed []error
	for _, addr := range addresses {
		res, err := askAdmission(ctx, t, addr, req)
		if err == nil {
			return res, nil
		}
		err = fmt.Errorf("join %s: %w", addr, err)
		failed = append(failed, err)
		switch connect.CodeOf(err) {
		case connect.CodeAborted:
			return nil, err
		case connect.CodePermissionDenied, connect.CodeInvalidArgument, connect.CodeFailedPrecondition:
			return nil, errors.Join(failed...) // the other members would return the same
		}
	}
	if len(failed) == 0 {
		return nil, errors.New("join: addresses: must name a manager of the cluster")
	}
	return nil, errors.Join(failed...)
}

// joinable returns an error if the data directory belongs to another cluster.
func joinable(dir *DataDir, t token.Token) error {
	content, err := readFile(dir.pki("ca.crt"))
	if err != nil || content == nil {
		return err
	}
	ca, err := pki.ParseCert(content)
	if err != nil {
		return fmt.Errorf("read %s: %w", dir.pki("ca.crt"), err)
	}
	if sha256.Sum256(ca.Raw) != t.CA {
		return fmt.Errorf("join: %s is of another cluster than the token: use an empty data directory", dir.pki("ca.crt"))
	}
	return nil
}

func askAdmission(ctx context.Context, t token.Token, addr string, req *apiv1.AdmitRequest) (*apiv1.AdmitResponse, error) {
	tr := &http.Transport{TLSClientConfig: pki.JoinTLS(t.CA), ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	res, err := shuntv1connect.NewMemberProtocolClient(&http.Client{Transport: tr}, "https://"+addr).Admit(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// adopt writes the admission response to the data directory. It writes the CA certificate last,
// because the other files are unused while it is absent.
func adopt(o Options, t token.Token, res *apiv1.AdmitResponse) (*Joined, error) {
	ca, err := pki.ParseCA(res.GetCa(), res.GetCaKey())
	if err != nil {
		return nil, fmt.Errorf("join: answer: %w", err)
	}
	if ca.Hash() != t.CA {
		return nil, errors.New("join: answer: the CA is not the one that the token names")
	}
	if len(res.GetStoreKey()) != storeKeyBytes {
		return nil, fmt.Errorf("join: answer: store key: %d bytes: must be %d", len(res.GetStoreKey()), storeKeyBytes)
	}
	old, err := readFile(o.Dir.pki("store.key"))
	if err != nil {
		return nil, fmt.Errorf("read store key: %w", err)
	}
	if old != nil && !bytes.Equal(old, res.GetStoreKey()) {
		return nil, fmt.Errorf("join: %s is of another cluster: use an empty data directory", o.Dir.pki("store.key"))
	}
	for _, file := range []struct {
		name    string
		content []byte
	}{{"store.key", res.GetStoreKey()}, {"ca.key", res.GetCaKey()}, {certFile, res.GetCertificate()}, {"ca.crt", res.GetCa()}} {
		if err := writeFile(o.Dir.pki(file.name), file.content); err != nil {
			return nil, fmt.Errorf("join: write %s: %w", file.name, err)
		}
	}
	// The certificate of the response names no addresses. This one does.
	s, err := newSecrets(ca, res.GetStoreKey())
	if err != nil {
		return nil, fmt.Errorf("join: answer: %w", err)
	}
	if _, err := newManagerCert(s, o); err != nil {
		return nil, err
	}
	return &Joined{Cluster: res.GetCluster(), Outside: res.GetOutside()}, nil
}
