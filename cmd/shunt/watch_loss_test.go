package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestWatchOutlivesItsManager kills the leading manager that `shunt get --watch` uses while changes
// continue at another. The command continues there and prints every service of every revision once.
func TestWatchOutlivesItsManager(t *testing.T) {
	m1, m2, m3 := newPeer(t, "m1"), newPeer(t, "m2"), newPeer(t, "m3")
	m1.start()
	m2.join(m1)
	m3.join(m2)
	m1.must(testNetwork, "apply", "-f", "-")
	watch := exec.Command(os.Args[0])
	args := []string{"--config", filepath.Join(m2.data, "admin.yaml"), "--server", "https://" + m1.addr + ",https://" + m2.addr, "get", "services", "--watch", "-o", "json"}
	watch.Env = append(os.Environ(), commandVariable+"="+strings.Join(args, "\n"))
	watch.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	watch.Stderr = t.Output()
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m1.must(testService(1), "apply", "-f", "-")
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		watch.Process.Kill()
		watch.Wait()
	}()
	lines, told := bufio.NewScanner(out), map[string]int{}
	// until reads the output up to the service.
	until := func(name string) {
		t.Helper()
		for lines.Scan() {
			var said struct{ Event, Name string }
			if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
				t.Fatalf("%s: %v", lines.Text(), err)
			}
			if said.Event != "upserted" {
				continue
			}
			if told[said.Name]++; said.Name == name {
				return
			}
		}
		t.Fatalf("the watch ended before it told %s: %v", name, lines.Err())
	}
	until("s1")
	m1.must(testService(2), "apply", "-f", "-")
	until("s2")
	m1.end(syscall.SIGKILL)
	for i := 3; i <= 5; i++ { // the first waits for the next leader
		m3.must(testService(i), "apply", "-f", "-")
	}
	until("s5")
	for i := range 5 {
		if name := fmt.Sprintf("s%d", i+1); told[name] != 1 {
			t.Errorf("%s was told %d times, want once", name, told[name])
		}
	}
}
