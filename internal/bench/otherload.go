package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// loadWorthTelling is the load average above which other work affects figures.
const loadWorthTelling = 1

// ReadLoad returns the load average of the last minute, or 0 if it cannot be read.
func ReadLoad() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	return parseLoad(string(text))
}

// parseLoad reads the first figure of /proc/loadavg (proc(5)).
func parseLoad(text string) float64 {
	first, _, _ := strings.Cut(text, " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return load
}

// LoadText returns a remark on figures taken while other work loaded the machine, or "" if the load
// is too small to matter.
func LoadText(load float64) string {
	if load < loadWorthTelling {
		return ""
	}
	return fmt.Sprintf("other work had put a load of %.1f on the machine when the run began", load)
}
