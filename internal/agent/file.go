package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// planFile is the last good plan: a PlanUpdate that is a snapshot.
const planFile = "plan.pb"

// writeFile replaces the file atomically and durably, mode 0600.
func writeFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// loadPlan returns nil when there is no plan.
func loadPlan(dir string) (*apiv1.PlanUpdate, error) {
	content, err := os.ReadFile(filepath.Join(dir, planFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read last good plan: %w", err)
	}
	up := &apiv1.PlanUpdate{}
	if err := proto.Unmarshal(content, up); err != nil {
		return nil, fmt.Errorf("read last good plan: %w", err)
	}
	return up, nil
}

// savePlan keeps the plan for the next start.
func savePlan(dir string, up *apiv1.PlanUpdate) error {
	content, err := proto.Marshal(up)
	if err != nil {
		return fmt.Errorf("keep plan: %w", err)
	}
	return writeFile(filepath.Join(dir, planFile), content)
}
