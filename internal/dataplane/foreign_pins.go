package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/pin"
	"golang.org/x/sys/unix"
)

// badPin is the path of a pin at which the object of this process is not.
type badPin struct {
	name string
	// found describes the object that is there instead; empty: there is none.
	found string
}

// pinWords describes bad pins for logs: "flows (was removed), rings (a program was there)".
func pinWords(bad []badPin) string {
	var words []string
	for _, b := range bad {
		if b.found == "" {
			words = append(words, b.name+" (was removed)")
			continue
		}
		words = append(words, fmt.Sprintf("%s (%s was there)", b.name, b.found))
	}
	return strings.Join(words, ", ")
}

// pinObject is the object at the path of a pin.
type pinObject struct {
	// words describes it: "a program". Empty: nothing is there.
	words string
	// object is a map, a program or a link; nil: something else is there, or nothing.
	object pin.Pinner
}

// openPin opens the object at a path, whatever it is. Symbolic links are not followed.
func openPin(path string) (pinObject, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return pinObject{}, nil
	case err != nil:
		return pinObject{}, fmt.Errorf("look for pin: %w", err)
	case info.IsDir():
		return pinObject{words: directoryWords}, nil
	case !info.Mode().IsRegular():
		return pinObject{words: "a symbolic link"}, nil
	}
	object, err := pin.Load(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return pinObject{}, nil
	}
	if err != nil {
		return pinObject{}, fmt.Errorf("open pin: %w", err)
	}
	p := pinObject{object: object}
	switch o := object.(type) {
	case *ebpf.Map:
		p.words = "another map"
		if info, err := o.Info(); err == nil {
			p.words = fmt.Sprintf("another map, %s of type %s", info.Name, info.Type)
		}
	case *ebpf.Program:
		p.words = "a program"
	default:
		p.words = "a link"
	}
	return p, nil
}

// directoryWords describe a directory.
const directoryWords = "a directory"

func (p pinObject) isDirectory() bool { return p.words == directoryWords }

func (p pinObject) close() {
	if p.object != nil {
		p.object.Close()
	}
}

// badPins returns the maps whose pins in dir are missing or are other objects, in order of their names. A removed pin that somebody replaced
// would give the next agent tables of a stranger, or keep it from starting. An error is of pins that could not be read; bad are others. Pins that were good before are not opened again: seen has their
// files, by path; nil: none.
func badPins(dir string, maps map[string]*ebpf.Map, seen map[string]fs.FileInfo) (bad []badPin, err error) {
	var errs []error
	for n, m := range maps {
		path := filepath.Join(dir, n)
		info, _ := os.Lstat(path)
		if was := seen[path]; was != nil && info != nil && os.SameFile(was, info) && was.ModTime().Equal(info.ModTime()) {
			continue
		}
		p, err := openPin(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !isMap(p.object, m) {
			bad = append(bad, badPin{n, p.words})
		} else if seen != nil && info != nil {
			seen[path] = info
		}
		p.close()
	}
	slices.SortFunc(bad, func(a, b badPin) int { return strings.Compare(a.name, b.name) })
	return bad, errors.Join(errs...)
}

// isMap reports whether an object is this map.
func isMap(object pin.Pinner, m *ebpf.Map) bool {
	found, ok := object.(*ebpf.Map)
	if !ok {
		return false
	}
	a, errA := found.Info()
	b, errB := m.Info()
	if errA != nil || errB != nil {
		return false
	}
	idA, _ := a.ID()
	idB, ok := b.ID()
	return ok && idA == idB
}

// repairPins pins the maps of bad pins in dir. The objects that are there are put aside in root.
func repairPins(root, dir string, maps map[string]*ebpf.Map, bad []badPin, log *slog.Logger) error {
	for _, b := range bad {
		path := filepath.Join(dir, b.name)
		if b.found != "" {
			if err := putAside(root, path, b.found, log); err != nil {
				return err
			}
		}
		if err := pinMap(maps[b.name], path); err != nil {
			return fmt.Errorf("pin table %s: %w", b.name, err)
		}
	}
	return nil
}

// badLinkPin returns the state of the pin of a link; nil when it is that link.
func badLinkPin(path string, l link.Link) (*badPin, error) {
	p, err := openPin(path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if found, ok := p.object.(link.Link); ok {
		a, errA := found.Info()
		b, errB := l.Info()
		if errA == nil && errB == nil && a.ID == b.ID {
			return nil, nil
		}
	}
	return &badPin{filepath.Base(path), p.words}, nil
}

// openOwnLink opens the pinned link of one of these programs. It returns nil where there is no pin, and where another object has its path: then
// foreign describes that. Without CAP_SYS_ADMIN, which the service units do not have, the kernel shows no link's program: then each link of their
// type counts as one of them, unless the kernel's symbols show the program's name.
func openOwnLink(path string, programs ...string) (l link.Link, foreign string, err error) {
	p, err := openPin(path)
	if err != nil {
		return nil, "", err
	}
	l, ok := p.object.(link.Link)
	if !ok {
		p.close()
		return nil, p.words, nil
	}
	name, err := linkProgram(l)
	switch {
	case errors.Is(err, fs.ErrPermission):
		name, err = "", nil
		if i := slices.IndexFunc(programs, func(p string) bool { return hasLinkType(l, p) }); i >= 0 {
			name = programs[i]
		}
	case errors.Is(err, fs.ErrNotExist):
		name, err = "", nil // links of other types have no program
	}
	if err != nil {
		l.Close()
		return nil, "", fmt.Errorf("read the program of link %s: %w", path, err)
	}
	if !slices.Contains(programs, name) {
		l.Close()
		return nil, "a link of program " + name, nil
	}
	l.Close()
	// A link that this function opens knows its pin, which Unpin removes.
	if l, err = link.LoadPinnedLink(path, nil); err != nil {
		return nil, "", fmt.Errorf("open pinned link %s: %w", path, err)
	}
	return l, "", nil
}

// takeOwnLink is openOwnLink that puts another object aside, so that a link can be pinned there.
func takeOwnLink(path string, log *slog.Logger, programs ...string) (link.Link, error) {
	l, foreign, err := openOwnLink(path, programs...)
	if err != nil || foreign == "" {
		return l, err
	}
	return nil, putAside(filepath.Dir(path), path, foreign, log)
}

// hasLinkType reports whether a link is of the type that links of our program have: XDP for a mux's, tcx for a host's.
func hasLinkType(l link.Link, program string) bool {
	info, err := l.Info()
	want := link.TCXType
	if slices.Contains(muxLinkPrograms, program) {
		want = link.XDPType
	}
	return err == nil && info.Type == want
}

// linkProgram returns the name of an XDP or tcx link's program; fs.ErrNotExist for other links, fs.ErrPermission without CAP_SYS_ADMIN
// where the kernel's symbols do not show it either.
func linkProgram(l link.Link) (string, error) {
	info, err := l.Info()
	if err != nil {
		return "", err
	}
	if info.Type != link.XDPType && info.Type != link.TCXType {
		return "", fs.ErrNotExist
	}
	p, err := ebpf.NewProgramFromID(info.Program)
	if errors.Is(err, fs.ErrPermission) {
		if name := linkSymbol(l); name != "" {
			return name, nil
		}
	}
	if err != nil {
		return "", err
	}
	defer p.Close()
	program, err := p.Info()
	if err != nil {
		return "", err
	}
	return program.Name, nil
}
