package host

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	machine "github.com/shuntlb/shunt/internal/lock"
	"github.com/shuntlb/shunt/internal/netdev"
)

// TestSecondHostIsRefused checks that an agent with a run directory of its own does not start in
// the network namespace of another one.
func TestSecondHostIsRefused(t *testing.T) {
	name := fmt.Sprintf("hostlock-%d", os.Getpid())
	if err := netdev.CreateNamespace(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netdev.DeleteNamespace(name) })
	if err := netdev.In(name, func() error {
		held, err := machine.Namespace("host")
		if err != nil {
			return err
		}
		defer held.Close()
		err = Run(context.Background(), Options{RunDir: t.TempDir(), Interface: "lo"})
		if want := fmt.Sprintf("another host agent (process %d) runs in this network namespace", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
