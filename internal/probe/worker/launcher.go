package worker

import (
	"os"
	"runtime"
	"sync"
)

// launcher starts processes from a thread of its own: they die with it, and other threads of a Go program may end early.
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

// newLauncher makes a launcher; its thread begins with the first start.
func newLauncher() *launcher { return &launcher{starts: make(chan launch)} }

// start runs this executable again. Nothing may start after close.
func (l *launcher) start(args []string, attr *os.ProcAttr) (*os.Process, error) {
	l.once.Do(func() { go l.run() })
	started := make(chan launched, 1)
	l.starts <- launch{args, attr, started}
	result := <-started
	return result.process, result.err
}

func (l *launcher) close() { close(l.starts) }

// run is the thread; it is never given back, and so ends with its goroutine.
func (l *launcher) run() {
	runtime.LockOSThread()
	for s := range l.starts {
		process, err := os.StartProcess("/proc/self/exe", s.args, s.attr)
		s.started <- launched{process, err}
	}
}
