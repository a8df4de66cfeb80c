package netdev

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTap: frames sent by the device are read from it completely. It ends when it is closed, and a
// second one has another name.
func TestTap(t *testing.T) {
	n, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var tap, other *Tap
	var sender *FrameSender
	if err := n.In(func() (err error) {
		if tap, err = OpenTap("tap-test%d"); err != nil {
			return err
		}
		if other, err = OpenTap("tap-test%d"); err != nil {
			return err
		}
		sender, err = NewFrameSender(tap.Index())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	defer other.Close()
	if tap.Index() == other.Index() || tap.name == other.name {
		t.Errorf("two devices are %d %s and %d %s", tap.Index(), tap.name, other.Index(), other.name)
	}
	frame := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}, bytes.Repeat([]byte("data"), 300)...)
	if err := sender.Send(frame); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<16)
	for {
		got, err := tap.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(b[:got], frame) {
			break
		}
		t.Errorf("the kernel sent % x on its own account", b[:got])
	}
	if err := tap.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := tap.Read(b); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read of a closed device: %v", err)
	}
	if err := sender.Send(frame); !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.ENODEV) {
		t.Errorf("a frame was sent by a device that is gone: %v", err)
	}
	if err := n.In(func() error { _, err := OpenTap(strings.Repeat("x", 16)); return err }); err == nil {
		t.Error("a device with a name of 16 bytes was made")
	}
}
