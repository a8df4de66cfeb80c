package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// otherBuild returns a program that carries this one's objects, in which constants of BTF have other values; a value below 0 takes another name.
func otherBuild(t *testing.T, values map[string]int) string {
	t.Helper()
	program := []byte("\x7fELF is how a program begins, and \x7fELF\x02\x01\x01 is in many")
	for _, object := range [][]byte{_MuxBytes, _HostBytes} {
		object = bytes.Clone(object)
		for name, value := range values {
			at := bytes.Index(object, append([]byte{0}, name+"\x00"...))
			if at < 0 {
				continue // of the other object
			}
			if at++; value < 0 {
				object[at] = 'X'
				continue
			}
			setConstant(t, object, name, uint32(value))
		}
		program = append(program, object...)
		program = append(program, "between"...)
	}
	file := filepath.Join(t.TempDir(), "shunt")
	must(t, os.WriteFile(file, program, 0o600))
	return file
}

// setConstant changes the value of a constant in the BTF of an object: an offset of its name, and the value behind it.
func setConstant(t *testing.T, object []byte, name string, value uint32) {
	t.Helper()
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(object))
	must(t, err)
	before := -1
	for typ, err := range spec.All() {
		must(t, err)
		if e, ok := typ.(*btf.Enum); ok {
			for _, v := range e.Values {
				if v.Name == name {
					before = int(v.Value)
				}
			}
		}
	}
	// A BTF section begins with magic 0xeb9f, version 1, flags, and the length of its header, from where offsets count: types, their length, strings.
	start := bytes.Index(object, []byte{0x9f, 0xeb, 1, 0, 24, 0, 0, 0})
	if start < 0 || before < 0 {
		t.Fatalf("no BTF with %s", name)
	}
	field := func(n int) int { return int(binary.LittleEndian.Uint32(object[start+8+4*n:])) }
	strings := object[start+24+field(2):][:field(3)]
	offset := bytes.Index(strings, append([]byte{0}, name+"\x00"...)) + 1
	types := object[start+24+field(0):][:field(1)]
	entry := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(offset)), uint32(before))
	if n := bytes.Count(types, entry); n != 1 {
		t.Fatalf("%s is in %d places", name, n)
	}
	binary.LittleEndian.PutUint32(types[bytes.Index(types, entry)+4:], value)
}

// TestProgramsThatCannotTakeOver: a build is refused where its ABI version is older, its tables have other sizes, or cookies mean something else to it,
// with the file, the directory and a cure, and nothing is changed. This build, and a later one, are accepted.
func TestProgramsThatCannotTakeOver(t *testing.T) {
	e := newMuxEnv(t)
	m, err := e.open(XDPNative)
	must(t, err)
	defer m.Close()
	env := newHostEnv(t)
	roles := map[string]struct {
		check         func(file, dir string) (TakeOver, error)
		dir           string
		abi           int
		version, cure string
		// shuffled puts a key with shuffled members into the tables, or takes it away.
		shuffled func(on bool)
	}{
		"mux": {CheckMuxProgram, e.dir, int(muxLimitLIMIT_ABI_VERSION), "LIMIT_ABI_VERSION", "shunt mux --stop", func(on bool) {
			m.memory.cookieSets[7].Live = 0
			if on {
				m.memory.cookieSets[7].Live = 1 | 1<<muxCookieLiveCOOKIE_SHUFFLED_SHIFT
			}
		}},
		"host": {CheckHostProgram, env.dir, int(hostHostLimitLIMIT_HOST_ABI_VERSION), "LIMIT_HOST_ABI_VERSION", "shunt host --stop", func(on bool) {
			keys := hostHostCookieKeys{}
			if on {
				keys.Use = uint32(hostHostCookieUseHOST_COOKIE_LIVE1 | hostHostCookieUseHOST_COOKIE_SHUFFLED1)
			}
			must(t, env.host.objects.CookieKeys.Update(uint32(5), keys, ebpf.UpdateAny))
		}},
	}
	for name, r := range roles {
		accepts := func(what string, file string, program int) {
			t.Helper()
			if got, err := r.check(file, r.dir); err != nil || got != (TakeOver{Pinned: uint32(r.abi), Program: uint32(program)}) {
				t.Errorf("%s: %s: %+v, %v", name, what, got, err)
			}
		}
		refuses := func(what string, file string, words ...string) {
			t.Helper()
			_, err := r.check(file, r.dir)
			for _, word := range append(words, file, r.cure) {
				if err == nil || !strings.Contains(err.Error(), word) {
					t.Errorf("%s: %s: %v, want an error with %q", name, what, err, word)
				}
			}
		}
		same := otherBuild(t, nil)
		accepts("this build", same, r.abi)
		accepts("the program of this test", "/proc/self/exe", r.abi)
		accepts("a later build", otherBuild(t, map[string]int{r.version: r.abi + 1}), r.abi+1)
		refuses("a former build", otherBuild(t, map[string]int{r.version: r.abi - 1}), r.dir, fmt.Sprintf("have ABI version %d, ", r.abi), fmt.Sprintf("has %d", r.abi-1))
		inOrder := otherBuild(t, map[string]int{muxShuffleConstant: -1, hostShuffleConstant: -1})
		accepts("a build without shuffled members, where there are none", inOrder, r.abi)
		r.shuffled(true)
		accepts("this build, where there are shuffled members", same, r.abi)
		refuses("a build without shuffled members, where there are some", inOrder, "shuffled")
		r.shuffled(false)
		accepts("a build without shuffled members, where there are none any more", inOrder, r.abi)

		empty := t.TempDir()
		if got, err := r.check(same, empty); err != nil || got != (TakeOver{Program: uint32(r.abi)}) {
			t.Errorf("%s: no pins: %+v, %v", name, got, err)
		}
		for _, file := range []string{filepath.Join(empty, "nope"), "/bin/true", empty} {
			if _, err := r.check(file, r.dir); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("%s: %s: %v, want an error that names it", name, file, err)
			}
		}
	}
}

// TestOtherTableSizes: a build whose records have another size is refused, though its ABI version is the same.
func TestOtherTableSizes(t *testing.T) {
	e := newMuxEnv(t)
	m, err := e.open(XDPNative)
	must(t, err)
	defer m.Close()
	other, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 24, MaxEntries: 1})
	must(t, err)
	defer other.Close()
	pin := filepath.Join(e.dir, muxPinTables, muxMapDatagrams)
	must(t, os.Remove(pin))
	must(t, other.Pin(pin))
	if _, err := CheckMuxProgram(otherBuild(t, nil), e.dir); err == nil || !strings.Contains(err.Error(), "table "+muxMapDatagrams) || !strings.Contains(err.Error(), "24 a value") {
		t.Errorf("got %v", err)
	}
}
