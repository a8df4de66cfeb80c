package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/manager"
)

const (
	// leaderPatience is how long a call is repeated while no manager leads, because an election
	// takes a few seconds.
	leaderPatience = 10 * time.Second
	leaderPause    = 250 * time.Millisecond
)

// reads are the procedures that change nothing and may be repeated.
var reads = map[string]bool{
	shuntv1connect.ManagerGetProcedure:        true,
	shuntv1connect.ManagerWatchProcedure:      true,
	shuntv1connect.ManagerStatusProcedure:     true,
	shuntv1connect.ManagerTraceProcedure:      true,
	shuntv1connect.ManagerFlowsProcedure:      true,
	shuntv1connect.ManagerAuditSNATProcedure:  true,
	shuntv1connect.ManagerListAccessProcedure: true,
	shuntv1connect.ManagerListKeysProcedure:   true,
	shuntv1connect.ManagerQUICConfigProcedure: true,
	shuntv1connect.ManagerEventsProcedure:     true,
	shuntv1connect.ManagerAuditProcedure:      true,
	shuntv1connect.ManagerMembersProcedure:    true,
	shuntv1connect.ManagerBackupProcedure:     true,
	shuntv1connect.ManagerVersionProcedure:    true,
}

func isRead(procedure string) bool { return reads[procedure] }

// noLeader reports whether a manager refused a call before it changed anything, because no manager
// leads.
func noLeader(err error) bool {
	var call *connect.Error
	return errors.As(err, &call) && call.Code() == connect.CodeUnavailable && connect.IsWireError(err) &&
		strings.Contains(call.Message(), manager.NoLeader)
}

// broken reports whether a call lost its connection, or the manager returned that it is
// unavailable.
func broken(err error) bool {
	return errors.As(err, new(lostAnswer)) || connect.CodeOf(err) == connect.CodeUnavailable && connect.IsWireError(err)
}

// persist repeats a call while no manager leads, for leaderPatience. It also repeats a read, once
// at each manager, if its connection broke or the manager is unavailable.
func (s *servers) persist(ctx context.Context, read bool, call func() error) error {
	deadline := time.Now().Add(leaderPatience)
	for others := len(s.urls) - 1; ; {
		index, _ := s.at()
		err := call()
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case noLeader(err) && time.Now().Before(deadline):
			s.leave(index)
		case read && broken(err) && others > 0:
			others--
			s.leave(index)
			continue
		default:
			return err
		}
		select {
		case <-time.After(leaderPause):
		case <-ctx.Done():
			return err
		}
	}
}

// unary is an interceptor that applies persist. Streams are repeated by their callers.
func (s *servers) unary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		err = s.persist(ctx, isRead(req.Spec().Procedure), func() error {
			res, err = next(ctx, req)
			return err
		})
		return res, err
	}
}
