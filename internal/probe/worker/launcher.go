package worker

import (
	"os"
	"runtime"
	"sync"
)

// launcher starts processes from one dedicated thread. They have a parent-death signal, which is
// sent when the thread that started them exits, and other threads of a Go program may exit early.
type launcher struct {
	starts chan launch
	once   sync.Once
}

type launch struct {
	args    []string
	attr    *os.ProcAttr
	started chan<- launched
}

type launched struct {
	process *os.Process
	err     error
}

// newLauncher returns a launcher. Its thread begins with the first start.
func newLauncher() *launcher { return &launcher{starts: make(chan launch)} }

// start starts this executable again with args. It must not be called after close.
func (l *launcher) start(args []string, attr *os.ProcAttr) (*os.Process, error) {
	l.once.Do(func() { go l.run() })
	started := make(chan launched, 1)
	l.starts <- launch{args, attr, started}
	result := <-started
	return result.process, result.err
}

func (l *launcher) close() { close(l.starts) }

// run is the goroutine of the thread. It never unlocks the thread, so both end together.
func (l *launcher) run() {
	runtime.LockOSThread()
	for s := range l.starts {
		process, err := os.StartProcess("/proc/self/exe", s.args, s.attr)
		s.started <- launched{process, err}
	}
}
