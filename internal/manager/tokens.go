package manager

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/token"
)

// Lifetimes of join tokens.
const (
	defaultTokenTTL = time.Hour
	maxTokenTTL     = 30 * 24 * time.Hour
	// maxTokenUses bounds the keys stored with a token.
	maxTokenUses = 100
)

// nodeName matches valid names of Nodes. A name becomes part of store keys and certificates.
var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

const allowedNodeName = "must be a DNS label: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"

// CreateToken implements the API.
func (a api) CreateToken(ctx context.Context, req *connect.Request[apiv1.CreateTokenRequest]) (*connect.Response[apiv1.CreateTokenResponse], error) {
	ttl := defaultTokenTTL
	var faults []lb.Violation
	if d := req.Msg.GetTtl(); d != nil {
		ttl = d.AsDuration()
		if d.CheckValid() != nil || ttl <= 0 || ttl > maxTokenTTL {
			faults = append(faults, lb.Violation{Field: "ttl", Value: ttl.String(), Allowed: "must be longer than 0s and at most " + maxTokenTTL.String()})
		}
	}
	if !nodeName.MatchString(req.Msg.GetNode()) {
		faults = append(faults, lb.Violation{Field: "node", Value: req.Msg.GetNode(), Allowed: allowedNodeName})
	}
	if !isNodeRole(req.Msg.GetRole()) && req.Msg.GetRole() != pki.RoleManager {
		faults = append(faults, lb.Violation{Field: "role", Value: req.Msg.GetRole(), Allowed: "must be mux, host or manager"})
	}
	if role, ok := a.m.view.roleOf(req.Msg.GetNode()); ok && isNodeRole(req.Msg.GetRole()) && string(role) != req.Msg.GetRole() {
		faults = append(faults, lb.Violation{Field: "role", Value: req.Msg.GetRole(), Allowed: "must be " + string(role) + ", the role of " + lb.Ref(lb.KindNode, req.Msg.GetNode())})
	}
	if n := req.Msg.GetUses(); n > maxTokenUses {
		faults = append(faults, lb.Violation{Field: "uses", Value: fmt.Sprint(n), Allowed: fmt.Sprintf("must be 1 to %d", maxTokenUses)})
	}
	if len(faults) > 0 {
		return nil, fault(invalid{faults})
	}
	t, expires, err := a.m.createToken(ctx, &apiv1.StoredToken{Node: req.Msg.GetNode(), Role: req.Msg.GetRole(), Uses: req.Msg.GetUses()}, ttl)
	if err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(&apiv1.CreateTokenResponse{Token: t.String(), Expires: timestamppb.New(expires)}), nil
}

// roleOf returns the role of a Node object.
func (v *view) roleOf(node string) (lb.Role, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	n := v.state.Nodes[node]
	if n == nil {
		return "", false
	}
	return n.Role, true
}

func isNodeRole(s string) bool { return s == string(lb.RoleMux) || s == string(lb.RoleHost) }

// createToken stores a token with the node, role and number of uses of made.
func (m *Manager) createToken(ctx context.Context, made *apiv1.StoredToken, ttl time.Duration) (token.Token, time.Time, error) {
	term, err := m.lead(ctx)
	if err != nil {
		return token.Token{}, time.Time{}, err
	}
	term.writing.Lock()
	defer term.writing.Unlock()
	random := make([]byte, token.RandomBytes)
	rand.Read(random)
	t := token.New(m.secrets.ca().Hash(), random)
	hash := t.SecretHash()
	now := m.o.Clock.Now()
	expires := now.Add(ttl)
	made.Id, made.SecretSha256, made.Expires = t.ID, hash[:], timestamppb.New(expires)
	value, err := proto.Marshal(made)
	if err != nil {
		return t, expires, err
	}
	txn := store.Txn{Compares: []store.Compare{{Key: dirTokens + t.ID}}, Ops: []store.Op{store.Put(dirTokens+t.ID, value)}}
	for _, id := range m.view.expiredTokens(now) {
		txn.Ops = append(txn.Ops, store.Delete(dirTokens+id))
	}
	entry := m.auditEntry(ctx, fmt.Sprintf("tokens/%s for %s %s created", t.ID, made.GetRole(), made.GetNode()))
	op, err := term.auditOp(entry)
	if err != nil {
		return t, expires, err
	}
	txn.Ops = append(txn.Ops, op)
	res, err := term.commit(ctx, txn)
	if err != nil {
		return t, expires, err
	}
	if res.Succeeded {
		m.auditDone(entry, res.Revision)
	}
	if !res.Succeeded {
		return t, expires, errors.New("token id is taken, try again")
	}
	return t, expires, term.wait(ctx, res.Revision)
}

func (v *view) expiredTokens(now time.Time) []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var out []string
	for id, t := range v.tokens {
		if !t.GetExpires().AsTime().After(now) {
			out = append(out, id)
		}
	}
	return out
}

// admit checks a token for a node with a public key, given by its hash. Every refusal returns the
// same error, so that it reveals nothing. cause is for the audit log.
func (v *view) admit(t token.Token, node, role string, key []byte, now time.Time) (stored *apiv1.StoredToken, cause string, err error) {
	v.mu.RLock()
	stored = v.tokens[t.ID]
	v.mu.RUnlock()
	switch ok := t.Matches(stored.GetSecretSha256()); {
	case !ok:
		cause = "unknown token"
	case stored.GetNode() != node || stored.GetRole() != role:
		cause = fmt.Sprintf("tokens/%s is for %s %s", t.ID, stored.GetRole(), stored.GetNode())
	case !stored.GetExpires().AsTime().After(now):
		cause = "tokens/" + t.ID + " has expired"
	case !joinedWith(stored, key) && len(stored.GetUsedBy()) >= tokenUses(stored):
		cause = "tokens/" + t.ID + " is used up"
	default:
		return stored, "", nil
	}
	return nil, cause, fmt.Errorf("join token for %s %s: it is unknown, expired, used or for another node", role, node)
}

// joinedWith reports whether a key has already joined with the token, because the answer may have
// been lost.
func joinedWith(t *apiv1.StoredToken, key []byte) bool {
	return slices.ContainsFunc(t.GetUsedBy(), func(used []byte) bool { return bytes.Equal(used, key) })
}

// tokenUses returns the number of keys that may join with a token.
func tokenUses(t *apiv1.StoredToken) int { return max(int(t.GetUses()), 1) }

// use checks a token and stores that the key used it, together with ops. The caller holds
// t.writing.
func (t *term) use(ctx context.Context, tok, node, role string, key []byte, ops ...store.Op) error {
	parsed, err := token.Parse(tok)
	if err != nil {
		return connect.NewError(connect.CodePermissionDenied, err)
	}
	stored, cause, err := t.m.view.admit(parsed, node, role, key, t.m.o.Clock.Now())
	if err != nil {
		return overReach{connect.NewError(connect.CodePermissionDenied, err), cause}
	}
	if !joinedWith(stored, key) {
		used := proto.CloneOf(stored)
		used.UsedBy = append(used.UsedBy, key)
		value, err := proto.Marshal(used)
		if err != nil {
			return err
		}
		ops = append(ops, store.Put(dirTokens+parsed.ID, value))
	}
	if len(ops) == 0 {
		return nil
	}
	res, err := t.commit(ctx, store.Txn{Ops: ops})
	if err != nil {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	return t.wait(ctx, res.Revision)
}
