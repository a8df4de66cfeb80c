package mux

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/netdev"
)

// TestOneMuxPerMachine: a second one is told why it may not run, whatever its run directory.
func TestOneMuxPerMachine(t *testing.T) {
	name := fmt.Sprintf("mux-%d-lock", os.Getpid())
	if err := netdev.CreateNamespace(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netdev.DeleteNamespace(name) })
	err := netdev.In(name, func() error {
		unlock, err := LockMachine()
		if err != nil {
			return err
		}
		if _, err := LockMachine(); err == nil || !strings.Contains(err.Error(), "another mux") {
			t.Errorf("a second one: error %v", err)
		}
		unlock()
		unlock, err = LockMachine()
		if err != nil {
			return fmt.Errorf("after the first ended: %w", err)
		}
		unlock()
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
