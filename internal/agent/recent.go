package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// recentFiles hold plans that are newer than planFile. They are written in turn and not synced: a
// written file outlives the agent, but not the machine. So one of them is complete whenever the
// agent is killed, and planFile whenever the machine loses power. Each begins with a header of
// recentMagic, the length of the plan and its checksum. Bytes after the plan are left over from a
// longer one.
var recentFiles = [2]string{"plan.recent.0", "plan.recent.1"}

const (
	recentMagic  = "shuntpl1"
	recentHeader = len(recentMagic) + 4 + 4
)

var recentSums = crc32.MakeTable(crc32.Castagnoli)

// recentPlans writes recentFiles.
type recentPlans struct {
	dir string
	// next is the index of the file to write next; the other one has the newest plan.
	next int
}

// save writes a plan without waiting for the disk.
func (r *recentPlans) save(up *apiv1.PlanUpdate) error {
	content, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, recentHeader), up)
	if err != nil {
		return fmt.Errorf("keep plan: %w", err)
	}
	plan := content[recentHeader:]
	copy(content, recentMagic)
	binary.BigEndian.PutUint32(content[len(recentMagic):], uint32(len(plan)))
	binary.BigEndian.PutUint32(content[len(recentMagic)+4:], crc32.Checksum(plan, recentSums))
	path := filepath.Join(r.dir, recentFiles[r.next])
	// not truncated, so that the file system has nothing to allocate
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.WriteAt(content, 0)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	r.next = 1 - r.next
	return nil
}

// removeRecent removes recentFiles.
func removeRecent(dir string) error {
	for _, name := range recentFiles {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("keep plan: %w", err)
		}
	}
	return nil
}

// loadRecent returns the newest plan of recentFiles; nil: there is none. Incomplete files do not
// count.
func loadRecent(dir string) (newest *apiv1.PlanUpdate) {
	for _, name := range recentFiles {
		if up := readRecent(filepath.Join(dir, name)); up != nil && newerPlan(up, newest) {
			newest = up
		}
	}
	return newest
}

// readRecent returns the plan in a file; nil: it is incomplete.
func readRecent(path string) *apiv1.PlanUpdate {
	content, err := os.ReadFile(path)
	if err != nil || len(content) < recentHeader || string(content[:len(recentMagic)]) != recentMagic {
		return nil
	}
	length := binary.BigEndian.Uint32(content[len(recentMagic):])
	sum := binary.BigEndian.Uint32(content[len(recentMagic)+4:])
	plan := content[recentHeader:]
	if uint64(length) > uint64(len(plan)) || crc32.Checksum(plan[:length], recentSums) != sum {
		return nil
	}
	up := &apiv1.PlanUpdate{}
	if proto.Unmarshal(plan[:length], up) != nil {
		return nil
	}
	return up
}

// newerPlan reports whether a has a later epoch than b, or a later revision in the same epoch.
// Every plan is newer than nil.
func newerPlan(a, b *apiv1.PlanUpdate) bool {
	if b == nil || a.GetEpoch() != b.GetEpoch() {
		return b == nil || a.GetEpoch() > b.GetEpoch()
	}
	return a.GetRevision() > b.GetRevision()
}
