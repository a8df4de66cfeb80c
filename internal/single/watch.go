package single

import (
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// maxLinks bounds how many links are followed to a file, as the kernel does.
const maxLinks = 40

// watch sees changes of a path by whatever way it leads to its content.
type watch struct {
	*fsnotify.Watcher
	path string
}

// newWatch fails when nothing could be seen.
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

// refresh watches the directories that matter now: links may lead elsewhere, and directories may be others of the same names. What
// is watched needlessly costs a look. Those that cannot be watched are not there, and their parents tell when they are.
func (w *watch) refresh() {
	for _, dir := range w.dirs() {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			_ = w.Add(real)
		}
	}
}

// dirs are the directories in which something of the way to the content can change: those of the path and of all links in
// it, the path itself when it is one, and the parents of these, where they are replaced.
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
