package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/shuntlb/shunt/internal/store"
)

// TestUnanswered: the errors of a cluster without a leader, as servers send them, are
// store.ErrUnanswered and keep etcd's message; others are not.
func TestUnanswered(t *testing.T) {
	s := &Store{life: context.Background()}
	for _, sent := range []error{
		rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCLeaderChanged, rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCTimeoutDueToLeaderFail, rpctypes.ErrGRPCTimeoutDueToConnectionLost,
	} {
		received := rpctypes.Error(sent)
		if err := s.fault("grant lease", received); !errors.Is(err, store.ErrUnanswered) || !errors.Is(err, received) || !strings.Contains(err.Error(), "grant lease: "+received.Error()) {
			t.Errorf("%v became %v", received, err)
		}
	}
	for _, other := range []error{rpctypes.Error(rpctypes.ErrGRPCPermissionDenied), rpctypes.Error(rpctypes.ErrGRPCNoSpace), context.Canceled} {
		if err := s.fault("grant lease", other); errors.Is(err, store.ErrUnanswered) {
			t.Errorf("%v became %v", other, err)
		}
	}
}
