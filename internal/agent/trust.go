package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
)

// followCAs keeps the accepted CAs and the certificate as the plan requires, until ctx ends. It
// runs for the life of a stream, during which nothing else changes the credentials.
func (l *loop) followCAs(ctx context.Context) {
	var retries backoff
	for {
		err := l.takeCAs(ctx)
		if ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		was := l.trustFault
		if l.trustFault = ""; err != nil {
			l.trustFault = err.Error()
		}
		changed := was != l.trustFault
		l.mu.Unlock()
		if changed {
			notify.Send(l.report)
		}
		if err == nil {
			retries.reset()
			select {
			case <-l.cas:
			case <-ctx.Done():
				return
			}
			continue
		}
		if changed {
			l.o.Log.Error("cannot follow the replacement of the CA", "error", err)
		}
		select {
		case <-l.o.Clock.After(retries.wait()):
		case <-l.cas:
		case <-ctx.Done():
			return
		}
	}
}

// takeCAs stores the plan's CAs, and renews the certificate if the first of them did not sign it.
func (l *loop) takeCAs(ctx context.Context) error {
	l.mu.Lock()
	ders := l.wanted.items.get(plan.NodeItem).GetNode().GetCas()
	creds := l.creds
	l.mu.Unlock()
	if len(ders) == 0 {
		return nil // the CA was never replaced
	}
	cas, err := pki.ParseCAs(ders)
	if err != nil {
		return err
	}
	if !pki.Same(creds.cas, cas) {
		next, err := creds.with(cas)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(l.o.StateDir, credentialsFile), next.content); err != nil {
			return err
		}
		l.use(next)
		l.o.Log.Info("accepts managers of other CAs", "cas", len(cas))
		notify.Send(l.report)
		creds = next
	}
	if pki.SignedBy(creds.cert.Leaf, cas[0]) {
		return nil
	}
	next, err := join(ctx, &l.o, l.managers.present, creds.clientTLS(), "", creds)
	if err != nil {
		return err
	}
	if !pki.SignedBy(next.cert.Leaf, cas[0]) {
		return errors.New("the manager signed the certificate with another CA than the plan names")
	}
	l.use(next)
	l.o.Log.Info("has a certificate of another CA", "certificate_until", next.cert.Leaf.NotAfter)
	notify.Send(l.report)
	return nil
}

// trustLocked returns the accepted CAs for the status. The issuer of a certificate that is not on
// disk is left out.
func (l *loop) trustLocked() *apiv1.TrustStatus {
	if l.creds == nil {
		return nil
	}
	out := &apiv1.TrustStatus{Trusts: pki.Fingerprints(l.creds.cas), Error: l.trustFault}
	if l.creds.unsaved.Load() {
		out.Error = "cannot store the certificate: see the log"
		return out
	}
	out.Issuer = l.creds.issuer
	return out
}

// refusedByTLS reports whether a manager refused the certificate in the handshake.
func refusedByTLS(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "remote error: tls: unknown certificate authority") || strings.Contains(err.Error(), "remote error: tls: bad certificate"))
}

// LockedOutFile in the state directory has the reason while no manager accepts the node.
const LockedOutFile = "locked-out"

// lastLockedOut returns the reason stored by an earlier process of the node.
func (l *loop) lastLockedOut() string {
	content, _ := os.ReadFile(filepath.Join(l.o.StateDir, LockedOutFile))
	return strings.TrimSpace(string(content))
}

// noteLockedOut records that a stream ended because the CAs of node and managers differ; nil: a
// manager accepted the node. A node that was away while the CA was replaced needs a new token.
func (l *loop) noteLockedOut(err error) {
	why := ""
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		why = "the managers' certificate is of a CA that this node does not accept"
	case refusedByTLS(err):
		why = "the managers do not accept this node's certificate"
	case err != nil:
		return // not evidence for either
	}
	if why != "" {
		why = fmt.Sprintf("%s: when the CA was replaced while the node was away, the node needs a new token at --token-file (shunt token create --node %s --role %s); until then it works with its last plan", why, l.o.Name, l.o.Role)
	}
	l.mu.Lock()
	was := l.lockedOut
	l.lockedOut = why
	l.mu.Unlock()
	if why == was {
		return
	}
	// shunt doctor reads the file.
	file := filepath.Join(l.o.StateDir, LockedOutFile)
	if why == "" {
		_ = os.Remove(file) // a later reason replaces it
		return
	}
	l.o.Log.Error("locked out", "error", why)
	if err := writeFile(file, []byte(why+"\n")); err != nil {
		l.o.Log.Warn("cannot keep why no manager takes this node", "error", err)
	}
}
