package lab

import (
	"fmt"
	"os/exec"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// unitCapabilities lists, by command, the capabilities that the service units in packaging/systemd
// leave to managers and agents (CapabilityBoundingSet). A lab's processes have no others, so that
// the lab detects capabilities that the units lack.
var unitCapabilities = map[string][]int{
	"manager": {unix.CAP_NET_BIND_SERVICE},
	"mux":     append(slices.Clone(agentCapabilities), unix.CAP_SYS_NICE),
	"host":    agentCapabilities,
}

var agentCapabilities = []int{
	unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_RESOURCE, unix.CAP_SETUID, unix.CAP_SETGID,
	unix.CAP_KILL,
}

// startBounded starts a process with only these capabilities. It locks the thread, which ends with
// its goroutine because dropped capabilities cannot be restored.
func startBounded(cmd *exec.Cmd, have []int) error {
	runtime.LockOSThread()
	for c := range unix.CAP_LAST_CAP + 1 {
		if slices.Contains(have, c) {
			continue
		}
		// EINVAL: this kernel has no capability of this number.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return cmd.Start()
}
