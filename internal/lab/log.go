package lab

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// logTail is the size of the part of a node's log in an error.
const logTail = 2 << 10

// Tail returns the end of a node's log, whole lines, at most n bytes.
func (l *Lab) Tail(node string, n int64) string {
	f, err := os.Open(l.LogPath(node))
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	start := max(0, size-n)
	b := make([]byte, size-start)
	if _, err := f.ReadAt(b, start); err != nil && err != io.EOF {
		return ""
	}
	if start > 0 {
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}

// withLog adds the end of a node's log to an error.
func (l *Lab) withLog(node string, err error) error {
	tail := l.Tail(node, logTail)
	if tail == "" {
		return fmt.Errorf("%w (nothing in %s)", err, l.LogPath(node))
	}
	return fmt.Errorf("%w\n--- end of %s\n%s---", err, l.LogPath(node), tail)
}

// passwordPath returns the file with the password of the BGP sessions (RFC 2385).
func (l *Lab) passwordPath() string { return filepath.Join(Dir(l.Topology.Name), "bgp-password") }

// makePassword makes the lab's BGP password.
func (l *Lab) makePassword() error {
	var b [12]byte
	if _, err := rand.Read(b[:]); err != nil {
		return fmt.Errorf("make the BGP password: %w", err)
	}
	if err := writeFile(l.passwordPath(), []byte(hex.EncodeToString(b[:])+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the BGP password: %w", err)
	}
	return nil
}

func (l *Lab) password() (string, error) {
	b, err := os.ReadFile(l.passwordPath())
	if err != nil {
		return "", fmt.Errorf("read the BGP password: %w", err)
	}
	return string(bytes.TrimSpace(b)), nil
}
