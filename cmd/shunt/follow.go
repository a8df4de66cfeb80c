package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
)

// Waiting times between attempts to resume a stream.
const (
	followWait    = 100 * time.Millisecond
	maxFollowWait = 5 * time.Second
)

// follow keeps a stream up until ctx ends: it restarts a lost stream at the next manager. once runs
// the stream until it ends and calls begun at its first message. follow calls note after each
// successful restart. It returns if the stream never began or a manager refuses it.
func (c *client) follow(ctx context.Context, note func(string), once func(begun func()) error) error {
	var lost error
	patience, wait, ever := time.Now().Add(leaderPatience), followWait, false
	for {
		index, _ := c.servers.at()
		err := once(func() {
			if lost != nil {
				note(fmt.Sprintf("reconnected to manager %s: %s", c.servers, lost))
			}
			lost, wait, ever = nil, followWait, true
		})
		if ctx.Err() != nil {
			return nil
		}
		starts := !ever && broken(err) && time.Now().Before(patience)
		if final(err) || !ever && !starts {
			return c.explain(err)
		}
		if lost == nil {
			lost = c.loss(index, err)
		}
		c.servers.leave(index)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		wait = min(2*wait, maxFollowWait)
	}
}

// loss returns the reason why a stream ended.
func (c *client) loss(index int, err error) error {
	var call *connect.Error
	switch {
	case err == nil:
		return fmt.Errorf("%s ended the stream", c.servers.urls[index])
	case errors.As(err, &call):
		return fmt.Errorf("%s was lost: %s", c.servers.urls[index], call.Message())
	}
	return fmt.Errorf("%s was lost: %w", c.servers.urls[index], err)
}

// final reports whether a retry would end the same way: a refusal, or a fault on this side.
func final(err error) bool {
	if err == nil {
		return false
	}
	if !errors.As(err, new(*connect.Error)) || errors.As(err, new(tokenError)) {
		return true
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeFailedPrecondition, connect.CodePermissionDenied,
		connect.CodeUnauthenticated, connect.CodeUnimplemented:
		return true
	}
	return false
}
