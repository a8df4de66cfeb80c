package loop

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience is how long a probe counts among those that are answered soon. It is far longer than what serves takes to answer.
	patience = 100 * time.Millisecond
	// maxPatient bounds the probes of a loop that wait longer: 16,384 of 500 ms each are 32,768 silent servers a second. A socket
	// takes about 3 KiB of the kernel. With the others it stays below the 65,536 numbers of an echo request.
	maxPatient = 16 << 10
	// patientShare is the share of the process's descriptors that all loops use for them.
	patientShare = 4
)

// room is how many probes a loop may have under way. Those that wait long, or did so the last time, have a room of their own, so
// that servers which are silent keep nobody else waiting.
type room struct {
	prompt, patient         int
	promptMost, patientMost int
}

// newRoom is that of one of several loops.
func newRoom(o *Options) room {
	r := room{promptMost: min(o.InFlight, maxPatient), patientMost: o.Patient}
	if r.patientMost == 0 {
		r.patientMost = maxPatient
		var limit unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
			r.patientMost = int(max(1, min(maxPatient, limit.Cur/patientShare/uint64(o.Loops))))
		}
	}
	r.patientMost = min(r.patientMost, maxPatient)
	return r
}

// has tells whether one more may begin.
func (r *room) has(patient bool) bool {
	if patient {
		return r.patient < r.patientMost
	}
	return r.prompt < r.promptMost
}

func (r *room) enter(patient bool) {
	if patient {
		r.patient++
	} else {
		r.prompt++
	}
}

func (r *room) leave(patient bool) {
	if patient {
		r.patient--
	} else {
		r.prompt--
	}
}

// change lets a probe that waited for long make place for another; false: there is no room for more of its kind.
func (r *room) change() bool {
	if !r.has(true) {
		return false
	}
	r.leave(false)
	r.enter(true)
	return true
}

// busy is how many are under way.
func (r *room) busy() int { return r.prompt + r.patient }

// marks is a bit for each of a dense set of numbers.
type marks []uint64

func (m marks) has(i uint32) bool { return int(i/64) < len(m) && m[i/64]&(1<<(i%64)) != 0 }

func (m *marks) set(i uint32, on bool) {
	if !on {
		if int(i/64) < len(*m) {
			(*m)[i/64] &^= 1 << (i % 64)
		}
		return
	}
	if n := int(i/64) + 1 - len(*m); n > 0 {
		*m = append(*m, make(marks, n)...)
	}
	(*m)[i/64] |= 1 << (i % 64)
}
