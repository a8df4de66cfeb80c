package lab

import (
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// Apply applies YAML at the lab's manager and returns the store's revision.
func (l *Lab) Apply(ctx context.Context, text string) (int64, error) {
	docs, err := lb.ParseDocuments(strings.NewReader(text), "", lb.Whole)
	if err != nil {
		return 0, fmt.Errorf("apply to lab %s: %w", l.Topology.Name, err)
	}
	request := &apiv1.ApplyRequest{}
	for _, d := range docs {
		request.Objects = append(request.Objects, convert.Written(d))
	}
	client, err := l.Client()
	if err != nil {
		return 0, err
	}
	answer, err := client.Apply(ctx, connect.NewRequest(request))
	if err != nil {
		return 0, fmt.Errorf("apply to lab %s: %w", l.Topology.Name, err)
	}
	return answer.Msg.GetRevision(), nil
}
