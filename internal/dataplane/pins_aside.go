package dataplane

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/pin"
)

// Objects of others at the paths of pins are renamed, not removed: the last pin of a link holds its program on the interface.

// foreignPrefix begins the names of objects that were put aside. The name of the pin and a number follow.
const foreignPrefix = "foreign-"

// maxForeign is how many objects are put aside from the path of one pin.
const maxForeign = 16

// IsForeignPin reports whether a file in a directory of pins is an object of others that was put aside.
func IsForeignPin(name string) bool { return strings.HasPrefix(name, foreignPrefix) }

// putAside renames the object of others at path to a name in root that no file has. An object that is aside already has a pin: then the one at path is
// removed.
func putAside(root, path, words string, log *slog.Logger) error {
	p, err := openPin(path)
	if err != nil {
		return err
	}
	defer p.close()
	name := filepath.Base(path)
	for n := range maxForeign {
		to := filepath.Join(root, foreignPrefix+name+"-"+strconv.Itoa(n+1))
		switch _, err := os.Lstat(to); {
		case errors.Is(err, fs.ErrNotExist):
			if err := os.Rename(path, to); err != nil {
				return fmt.Errorf("put %s aside from the path of pin %s: %w", words, name, err)
			}
			log.Warn("moved another object from the path of a pin", "pin", path, "object", words, "to", to)
			return nil
		case err != nil:
			return fmt.Errorf("look for objects put aside: %w", err)
		}
		aside, err := openPin(to)
		if err != nil {
			return err
		}
		same := sameObject(p.object, aside.object)
		aside.close()
		if !same {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove %s from the path of pin %s: %w", words, name, err)
		}
		log.Warn("removed another object from the path of a pin, which is pinned aside already", "pin", path, "object", words, "aside", to)
		return nil
	}
	return fmt.Errorf("put %s aside from the path of pin %s: %d objects are aside already: move or remove %s in %s", words, name, maxForeign,
		foreignPrefix+name+"-1 to -"+strconv.Itoa(maxForeign), root)
}

// sameObject reports whether two pins are of one map, program or link.
func sameObject(a, b pin.Pinner) bool {
	switch a := a.(type) {
	case *ebpf.Map:
		return isMap(b, a)
	case *ebpf.Program:
		b, ok := b.(*ebpf.Program)
		if !ok {
			return false
		}
		infoA, errA := a.Info()
		infoB, errB := b.Info()
		if errA != nil || errB != nil {
			return false
		}
		idA, ok := infoA.ID()
		idB, _ := infoB.ID()
		return ok && idA == idB
	case link.Link:
		b, ok := b.(link.Link)
		if !ok {
			return false
		}
		infoA, errA := a.Info()
		infoB, errB := b.Info()
		return errA == nil && errB == nil && infoA.ID == infoB.ID
	}
	return false
}

// removeOwnMap removes the pin of a table of this name, and leaves other objects at its path.
func removeOwnMap(path, name string) error {
	p, err := openPin(path)
	if err != nil {
		return err
	}
	defer p.close()
	if m, ok := p.object.(*ebpf.Map); !ok || !hasName(m, name) {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}

// emptySet removes the tables from a directory of them. It returns the names of objects of others, which stay.
func emptySet(path string) (left []string, err error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pin directory: %w", err)
	}
	for _, e := range entries {
		file := filepath.Join(path, e.Name())
		if err := removeOwnMap(file, e.Name()); err != nil {
			return nil, err
		}
		if _, err := os.Lstat(file); err == nil {
			left = append(left, e.Name())
		}
	}
	return left, nil
}

// removeSet removes a directory of tables in root, so that its path is free. Objects of others are put aside in root.
func removeSet(root, name string, log *slog.Logger) error {
	path := filepath.Join(root, name)
	p, err := openPin(path)
	if err != nil {
		return err
	}
	p.close()
	if p.words == "" {
		return nil
	}
	if !p.isDirectory() {
		return putAside(root, path, p.words, log)
	}
	left, err := emptySet(path)
	if err != nil {
		return err
	}
	for _, l := range left {
		p, err := openPin(filepath.Join(path, l))
		if err != nil {
			return err
		}
		p.close()
		if err := putAside(root, filepath.Join(path, l), p.words, log); err != nil {
			return err
		}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove old pins: %w", err)
	}
	return nil
}

// dropSet removes the tables of a set in root, and its directory if nothing of others is there.
func dropSet(root, name string) error {
	path := filepath.Join(root, name)
	p, err := openPin(path)
	if err != nil {
		return err
	}
	p.close()
	if !p.isDirectory() {
		return nil
	}
	left, err := emptySet(path)
	if err != nil || len(left) > 0 {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}

// numberedPins lists the interfaces of the pins in dir whose names are this prefix and the decimal number of an interface.
func numberedPins(dir, prefix string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var out []int
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if n, err := strconv.Atoi(rest); ok && err == nil && n > 0 && strconv.Itoa(n) == rest {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// kernelSymbols lists the kernel's symbols; tests choose another file.
var kernelSymbols = "/proc/kallsyms"

// programMark is what fdinfo shows of a link's program. The kernel gives no number of a program to another one soon.
type programMark struct{ number, tag string }

// symbolNames are the names of programs that were looked for, empty where the kernel shows none: its symbols are a hundred thousand lines, and the BGP
// speaker looks at its mux's link many times a second.
var symbolNames struct {
	mu    sync.Mutex
	names map[programMark]string
}

// maxSymbolNames bounds symbolNames.
const maxSymbolNames = 256

// linkSymbol returns the name of a link's program by the kernel's symbols, which need no capability; empty: they do not show it, for instance where
// net.core.bpf_jit_harden is set.
func linkSymbol(l link.Link) string {
	fd, ok := l.(interface{ FD() int })
	if !ok {
		return ""
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd.FD()))
	if err != nil {
		return ""
	}
	var id programMark
	for line := range strings.Lines(string(info)) {
		if value, ok := strings.CutPrefix(line, "prog_tag:"); ok {
			id.tag = strings.TrimSpace(value)
		}
		if value, ok := strings.CutPrefix(line, "prog_id:"); ok {
			id.number = strings.TrimSpace(value)
		}
	}
	if id.tag == "" || id.number == "" {
		return ""
	}
	symbolNames.mu.Lock()
	defer symbolNames.mu.Unlock()
	name, known := symbolNames.names[id]
	if !known {
		name = findSymbol(" bpf_prog_" + id.tag + "_")
		if symbolNames.names == nil || len(symbolNames.names) >= maxSymbolNames {
			symbolNames.names = map[programMark]string{}
		}
		symbolNames.names[id] = name
	}
	return name
}

// findSymbol returns what follows a text in the kernel's symbols; empty if it is not there.
func findSymbol(text string) string {
	symbols, err := os.Open(kernelSymbols)
	if err != nil {
		return ""
	}
	defer symbols.Close()
	for lines := bufio.NewScanner(symbols); lines.Scan(); {
		if _, name, ok := strings.Cut(lines.Text(), text); ok {
			name, _, _ = strings.Cut(name, "\t")
			return kernelName(name)
		}
	}
	return ""
}
