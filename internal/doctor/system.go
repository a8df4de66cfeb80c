package doctor

import (
	"fmt"
	"strings"
)

// Oldest kernels: 6.6 has tcx and its links. Plain servers need tunnel devices and foo over UDP for
// both families: 4.7.
const (
	minMajor       = 6
	minMinor       = 6
	serverMinMajor = 4
	serverMinMinor = 7
)

// bpfDir is the directory of the data planes' pins.
const bpfDir = "/sys/fs/bpf"

// needed lists capabilities that the agents need, with their bits (linux/capability.h): some of
// those that the service units keep.
var needed = []struct {
	name string
	bit  uint
}{
	{"CAP_NET_ADMIN", 12}, {"CAP_NET_RAW", 13}, {"CAP_PERFMON", 38}, {"CAP_BPF", 39},
}

const rootCure = "run it as root: sudo shunt doctor"

func (e *examination) kernel() {
	const check = "kernel"
	needMajor, needMinor := minMajor, minMinor
	if e.o.Role == Server {
		needMajor, needMinor = serverMinMajor, serverMinMinor
	}
	cure := fmt.Sprintf("install Linux %d.%d or newer, for instance on Debian 12: apt install -t bookworm-backports linux-image-amd64", needMajor, needMinor)
	release, err := e.m.Kernel()
	if err != nil {
		e.fail(check, cure, "%v", err)
		return
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		e.fail(check, cure, "%s: not a release number", release)
		return
	}
	if major < needMajor || major == needMajor && minor < needMinor {
		e.fail(check, cure, "Linux %s, must be %d.%d or newer", release, needMajor, needMinor)
		return
	}
	e.ok(check, "Linux %s", release)
}

func (e *examination) capabilities() {
	const check = "capabilities"
	set, err := e.m.Capabilities()
	if err != nil {
		e.fail(check, rootCure, "%v", err)
		return
	}
	var missing []string
	for _, c := range needed {
		if set&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		e.fail(check, rootCure, "without %s", strings.Join(missing, ", "))
		return
	}
	e.ok(check, "all that are needed")
}

func (e *examination) btf() {
	const check = "btf"
	cure := "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y: the distributions' kernels are"
	switch have, err := e.m.BTF(); {
	case err != nil:
		e.fail(check, cure, "%v", err)
	case !have:
		e.fail(check, cure, "no /sys/kernel/btf/vmlinux")
	default:
		e.ok(check, "/sys/kernel/btf/vmlinux")
	}
}

func (e *examination) bpffs() {
	const check = "bpffs"
	cure := fmt.Sprintf("mount -t bpf bpf %s", bpfDir)
	switch mounted, err := e.m.BPFFS(bpfDir); {
	case err != nil:
		e.fail(check, cure, "%v", err)
	case !mounted:
		e.fail(check, cure, "no bpf filesystem at %s", bpfDir)
	default:
		if foreign, err := e.m.ForeignPins(bpfDir); err != nil || len(foreign) > 0 {
			e.warn(check, "find out which program pins them at paths of Shunt, then move or remove them: the last pin of a link holds its program attached",
				"objects of other programs were put aside: %s", strings.Join(foreign, ", "))
			return
		}
		e.ok(check, "mounted at %s", bpfDir)
	}
}

func (e *examination) jit() {
	const check = "jit"
	value, err := e.m.Sysctl("net/core/bpf_jit_enable")
	switch {
	case err != nil:
		// Kernels that always compile may lack this setting.
		e.ok(check, "always on")
	case value == "0":
		e.warn(check, "sysctl -w net.core.bpf_jit_enable=1", "net.core.bpf_jit_enable is 0: programs are interpreted")
	default:
		e.ok(check, "net.core.bpf_jit_enable is %s", value)
	}
}

// programs tries to load the programs and maps that the role needs.
func (e *examination) programs() {
	if err := e.m.ProbeArray(); err != nil {
		e.fail("bpf arrays", rootCure, "%v", err)
	} else {
		e.ok("bpf arrays", "memory-mapped arrays can be made")
	}
	if e.o.Role == Mux {
		if err := e.m.ProbeXDP(); err != nil {
			e.fail("xdp", rootCure, "%v", err)
		} else {
			e.ok("xdp", "XDP programs load")
		}
		return
	}
	const loopback = 1
	if err := e.m.ProbeTCX(loopback); err != nil {
		e.fail("tcx", fmt.Sprintf("boot Linux %d.%d or newer, and %s", minMajor, minMinor, rootCure), "%v", err)
		return
	}
	e.ok("tcx", "tc programs load and attach by tcx")
}

// forwarding checks that the kernel forwards, because it looks up routes for the programs, and
// forwards packets that they cannot.
func (e *examination) forwarding() {
	e.setting("ip_forward", "net/ipv4/ip_forward")
	e.setting("ipv6 forwarding", "net/ipv6/conf/all/forwarding")
}

// stamps checks the requirements of cookies in TCP timestamps for servers in this namespace.
// Servers in other namespaces have settings of their own.
func (e *examination) stamps() {
	const check = "tcp timestamps"
	value, err := e.m.Sysctl("net/ipv4/tcp_timestamps")
	switch {
	case err != nil:
		e.warn(check, "", "%v", err)
	case value == "0":
		e.warn(check, "sysctl -w net.ipv4.tcp_timestamps=1", "net.ipv4.tcp_timestamps is 0: connections carry no cookie (affinity cookie), and are kept by flow tables")
	default:
		e.ok(check, "net.ipv4.tcp_timestamps is %s", value)
	}
	const cookies = "syn cookies"
	switch value, err := e.m.Sysctl("net/ipv4/tcp_syncookies"); {
	case err != nil: // a kernel without them
		e.ok(cookies, "none")
	case value == "2":
		e.warn(cookies, "sysctl -w net.ipv4.tcp_syncookies=1",
			"net.ipv4.tcp_syncookies is 2: every connection is opened by one, and those whose clients send no timestamps lose window scaling and SACK")
	default:
		e.ok(cookies, "net.ipv4.tcp_syncookies is %s", value)
	}
}

// setting requires a setting to be 1.
func (e *examination) setting(check, key string) {
	dotted := strings.ReplaceAll(key, "/", ".")
	cure := fmt.Sprintf("sysctl -w %s=1", dotted)
	value, err := e.m.Sysctl(key)
	switch {
	case err != nil:
		e.fail(check, cure, "%v", err)
	case value != "1":
		e.fail(check, cure, "%s is %s, must be 1", dotted, value)
	default:
		e.ok(check, "%s is 1", dotted)
	}
}
