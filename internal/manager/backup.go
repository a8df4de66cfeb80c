package manager

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// Backup implements the API.
func (api) Backup(context.Context, *connect.Request[apiv1.BackupRequest], *connect.ServerStream[apiv1.BackupResponse]) error {
	return connect.NewError(connect.CodeUnimplemented, errors.New("Backup: "+lb.NotSupported))
}
