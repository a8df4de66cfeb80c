package bench

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine describes the machine of a measurement, without its owner.
type Machine struct {
	CPU    string // model name
	CPUs   int
	Memory string
	Kernel string // version, without the build's own suffix
	Go     string
}

// ThisMachine describes the current machine.
func ThisMachine() (Machine, error) {
	m := Machine{CPU: cpuModel(), CPUs: runtime.NumCPU(), Go: runtime.Version()}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return m, fmt.Errorf("read kernel release: %w", err)
	}
	m.Kernel, _, _ = strings.Cut(unix.ByteSliceToString(name.Release[:]), "-")
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("read memory size: %w", err)
	}
	m.Memory = fmt.Sprintf("%.0f GiB", float64(info.Totalram)*float64(info.Unit)/(1<<30))
	return m, nil
}

// cpuModel reads the processor's name, or returns "unknown" if /proc/cpuinfo has none.
func cpuModel() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// String returns one line for the published page.
func (m Machine) String() string {
	return fmt.Sprintf("%d CPUs (%s), %s memory, Linux %s, %s", m.CPUs, m.CPU, m.Memory, m.Kernel, m.Go)
}
