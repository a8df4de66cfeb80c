package lab_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// device holds the counters of one network device.
type device struct {
	rxBytes, rxPackets, txBytes, txPackets uint64
}

// readDevice reads a device's counters from /proc/net/dev of a node.
func readDevice(t *testing.T, node, name string) device {
	t.Helper()
	var d device
	err := netdev.In(shared.Topology.Name+"-"+node, func() error {
		f, err := os.Open("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			key, rest, ok := strings.Cut(lines.Text(), ":")
			if !ok || strings.TrimSpace(key) != name {
				continue
			}
			fields := strings.Fields(rest)
			for i, to := range map[int]*uint64{0: &d.rxBytes, 1: &d.rxPackets, 8: &d.txBytes, 9: &d.txPackets} {
				if *to, err = strconv.ParseUint(fields[i], 10, 64); err != nil {
					return err
				}
			}
			return nil
		}
		return fmt.Errorf("no device %s", name)
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// All backends respond over both families, each at least once.
func TestHTTPOverBothFamilies(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "web", number: 20, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"}}
	web.entry = web.both
	web.up(t)
	for _, target := range web.targets() {
		counts := servers(t, target, 100)
		for _, vm := range web.backends {
			if counts[vm] == 0 {
				t.Errorf("%s: %s answered none of 100 requests: %v", target, vm, counts)
			}
		}
		if len(counts) != len(web.backends) {
			t.Errorf("%s: answers came from %v", target, counts)
		}
	}
}

// A hundred megabytes arrive complete, bypass the muxes on their way back, and leave the server in
// GSO packets.
func TestBigTransferReturnsDirectly(t *testing.T) {
	logsOnFailure(t, shared)
	const size = 100_000_000
	web := service{name: "big", number: 21, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm1"}}
	web.up(t)
	for _, target := range web.targets() {
		server := readDevice(t, "host1-vm1", lab.Uplink)
		muxes := muxBytes(t)
		check := &patternChecker{}
		n, err := fetch(target, fmt.Sprintf("/bytes/%d", size), check)
		if err != nil || n != size {
			t.Fatalf("%s: %d bytes of %d: %v", target, n, size, err)
		}
		if check.bad {
			t.Errorf("%s: byte %d is wrong", target, check.wrong)
		}
		if passed := muxBytes(t) - muxes; passed > size/5 {
			t.Errorf("%s: %d bytes passed the muxes: the answer does not return directly", target, passed)
		}
		packets := readDevice(t, "host1-vm1", lab.Uplink).txPackets - server.txPackets
		if packets > size/1400/2 {
			t.Errorf("%s: the server sent %d packets: segmentation offload is off", target, packets)
		}
	}
}

// Twenty megabytes are sent through the tunnel and echoed, byte for byte.
func TestBigUpload(t *testing.T) {
	logsOnFailure(t, shared)
	const size = 20_000_000
	echo := service{name: "upload", number: 22, protocol: "tcp", port: 7, dipPort: 7, backends: []string{"host2-vm1"}}
	echo.up(t)
	for _, target := range echo.targets() {
		conn, err := dial("tcp", target)
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		go func() {
			_, err := io.CopyN(conn, &patternReader{}, size)
			sent <- err
		}()
		check := &patternChecker{}
		n, err := io.CopyN(check, conn, size)
		if err := <-sent; err != nil {
			t.Errorf("%s: send: %v", target, err)
		}
		if err != nil || n != size || check.bad {
			t.Errorf("%s: %d bytes of %d came back, wrong %v at %d: %v", target, n, size, check.bad, check.wrong, err)
		}
		conn.Close()
	}
}

// muxBytes returns the bytes that all muxes received.
func muxBytes(t *testing.T) uint64 {
	t.Helper()
	var sum uint64
	for i := 1; i <= shared.Topology.Muxes; i++ {
		sum += readDevice(t, fmt.Sprintf("mux%d", i), lab.Uplink).rxBytes
	}
	return sum
}

// patternChecker compares the written data with the pattern of /bytes/N.
type patternChecker struct {
	at    int64
	bad   bool
	wrong int64 // position of the first wrong byte
}

func (c *patternChecker) Write(p []byte) (int, error) {
	for i, b := range p {
		if b != lab.PatternByte(c.at+int64(i)) && !c.bad {
			c.bad, c.wrong = true, c.at+int64(i)
		}
	}
	c.at += int64(len(p))
	return len(p), nil
}

// patternReader yields the pattern without end.
type patternReader struct{ at int64 }

func (r *patternReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = lab.PatternByte(r.at + int64(i))
	}
	r.at += int64(len(p))
	return len(p), nil
}
