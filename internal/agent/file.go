package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// planFile is the last good plan that is durable: a PlanUpdate that is a snapshot. recentFiles may
// have a newer one.
const planFile = "plan.pb"

// writeFile replaces the file atomically and durably, with mode 0600. It creates the directory if
// that is missing.
func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
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

// loadPlan returns the newest stored plan; nil: there is none. Without planFile there is none, and
// recentFiles are removed, because an operator removes planFile to start the node without a plan,
// and a recent plan of a previous cluster may seem newer than all plans to come.
func loadPlan(dir string) (*apiv1.PlanUpdate, error) {
	content, err := os.ReadFile(filepath.Join(dir, planFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, removeRecent(dir)
	}
	recent := loadRecent(dir)
	up := &apiv1.PlanUpdate{}
	if err == nil {
		err = proto.Unmarshal(content, up)
	}
	switch {
	case recent != nil && (err != nil || newerPlan(recent, up)):
		return recent, nil
	case err != nil:
		return nil, fmt.Errorf("read last good plan: %w", err)
	}
	return up, nil
}

// savePlan stores the plan durably for the next start.
func savePlan(dir string, up *apiv1.PlanUpdate) error {
	content, err := proto.Marshal(up)
	if err != nil {
		return fmt.Errorf("keep plan: %w", err)
	}
	return writeFile(filepath.Join(dir, planFile), content)
}
