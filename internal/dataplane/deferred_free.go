package dataplane

import "sync"

// deferredFree frees entries of tables that programs may still read: in the background, once a grace period has passed. A change of the
// tables waits for one only when it finds no room (flushLocked).
type deferredFree struct {
	// mu is the lock of the tables; free functions run under it. It guards pending and running.
	mu *sync.Mutex
	// wait returns after a grace period.
	wait func() error

	pending []func()
	// err is that of a background wait. The entries stay pending until the next deferLocked or flushLocked.
	err error
	// flushes counts flushLocked: a background wait that began before one has nothing left to free.
	flushes uint64
	running bool
	working sync.WaitGroup
}

// deferLocked has free called under mu after a grace period.
func (d *deferredFree) deferLocked(free func()) {
	d.pending = append(d.pending, free)
	if d.running {
		return
	}
	d.running = true
	d.working.Go(d.run)
}

// run frees pending entries until there are none. An error ends it.
func (d *deferredFree) run() {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { d.running = false }()
	for len(d.pending) > 0 {
		n, flushes := len(d.pending), d.flushes
		d.mu.Unlock()
		err := d.wait()
		d.mu.Lock()
		if err != nil {
			d.err = err
			return
		}
		if d.flushes == flushes {
			d.freeLocked(n)
		}
	}
}

// flushLocked waits for a grace period, with mu held, and frees all pending entries. Without any it returns immediately.
func (d *deferredFree) flushLocked() error {
	if len(d.pending) == 0 {
		return nil
	}
	if err := d.wait(); err != nil {
		return err
	}
	d.flushes++
	d.freeLocked(len(d.pending))
	return nil
}

// errLocked returns the error of a background wait, once.
func (d *deferredFree) errLocked() error {
	err := d.err
	d.err = nil
	return err
}

// freeLocked frees the oldest n entries.
func (d *deferredFree) freeLocked(n int) {
	for _, free := range d.pending[:n] {
		free()
	}
	d.pending = append([]func(){}, d.pending[n:]...)
}

// close returns when the background work has ended. mu is not held; nothing is deferred any more. Entries may stay pending after an error.
func (d *deferredFree) close() { d.working.Wait() }
