package single

import (
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// maxLinks limits the links that are followed to a file, as in the kernel.
const maxLinks = 40

// watch detects changes of a path, through whatever links it leads to its content.
type watch struct {
	*fsnotify.Watcher
	path string
}

// newWatch returns an error if no change could be detected.
func newWatch(path string) (*watch, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	w := &watch{watcher, path}
	if err := w.Add(filepath.Dir(path)); err != nil {
		w.Close()
		return nil, err
	}
	w.refresh()
	return w, nil
}

// refresh watches the directories that matter now, because links may have new targets, and
// directories may have been replaced under the same names. A needless watch only costs a read.
// Directories that cannot be watched do not exist, and their parents report when they are created.
func (w *watch) refresh() {
	for _, dir := range w.dirs() {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			_ = w.Add(real)
		}
	}
}

// dirs returns the directories in which a part of the path to the content can change: those of the
// path and of all links in it, the path itself when it is one, and the parents of these, in which
// they are replaced.
func (w *watch) dirs() []string {
	var out []string
	links := 0
	var follow func(path string)
	follow = func(path string) {
		out = append(out, filepath.Dir(path), filepath.Dir(filepath.Dir(path)))
		for at := path; at != filepath.Dir(at); at = filepath.Dir(at) {
			to, err := os.Readlink(at)
			if err != nil {
				continue
			}
			out = append(out, filepath.Dir(at))
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(at), to)
			}
			if links++; links <= maxLinks {
				follow(to + path[len(at):])
			}
			return
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			out = append(out, path)
		}
	}
	whole, err := filepath.Abs(w.path)
	if err != nil {
		whole = filepath.Clean(w.path)
	}
	follow(whole)
	return out
}
