package netdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Sysctl is one kernel setting, its key with slashes: "net/ipv4/ip_forward".
type Sysctl struct {
	Key   string
	Value string
}

// SetSysctls writes settings of the namespace, in order.
func SetSysctls(namespace string, settings []Sysctl) error {
	return In(namespace, func() error {
		for _, s := range settings {
			if err := os.WriteFile(filepath.Join("/proc/sys", s.Key), []byte(s.Value), 0o644); err != nil {
				return fmt.Errorf("set %s to %s in namespace %q: %w", s.Key, s.Value, namespace, err)
			}
		}
		return nil
	})
}

// ReadSysctl returns a setting of the namespace.
func ReadSysctl(namespace, key string) (value string, err error) {
	err = In(namespace, func() error {
		b, err := os.ReadFile(filepath.Join("/proc/sys", key))
		value = strings.TrimSpace(string(b))
		return err
	})
	return value, err
}
