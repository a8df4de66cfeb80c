package lab

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/netdev"
)

// TestKillAllLeavesNobody checks that a process that restarts another one when it dies, as a mux
// does with its BGP speaker, leaves none when all are killed.
func TestKillAllLeavesNobody(t *testing.T) {
	l := &Lab{Topology: Topology{Name: fmt.Sprintf("kill%d", os.Getpid())}}
	node := Node{Name: "mux1"}
	namespace := node.Namespace(l.Topology.Name)
	if out, err := exec.Command("ip", "netns", "add", namespace).CombinedOutput(); err != nil {
		t.Fatalf("make namespace: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", namespace).Run() })
	for try := range 60 {
		cmd := exec.Command("sh", "-c", "echo; for k in 1 2 3 4 5 6 7 8 9 10 11 12; do (for i in $(seq 500); do perl -e sleep; done) & done; wait")
		cmd.Env = append(os.Environ(), labVariable+"="+l.Topology.Name)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := netdev.In(namespace, cmd.Start); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := l.killAll(t.Context(), []Node{node}); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		left, err := exec.Command("ip", "netns", "pids", namespace).Output()
		if err != nil {
			t.Fatal(err)
		}
		if pids := strings.Fields(string(left)); len(pids) > 0 {
			exec.Command("kill", append([]string{"-9"}, pids...)...).Run()
			t.Fatalf("try %d: processes %v are left", try, pids)
		}
	}
}
