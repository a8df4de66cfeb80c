package loop

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience is how long a probe counts among those that are answered soon. A working server
	// answers far sooner.
	patience = 100 * time.Millisecond
	// maxPatient bounds the probes of a loop that wait longer: 16,384 of 500 ms each are 32,768
	// silent servers a second. A socket takes about 3 KiB in the kernel. Together with the prompt
	// probes the number stays below the 65,536 sequence numbers of echo requests.
	maxPatient = 16 << 10
	// patientShare is the divisor of the process's descriptors: all loops use one part of them for
	// patient probes.
	patientShare = 4
)

// room bounds the concurrent probes of a loop. Probes that wait for long, or did so the last time,
// have a limit of their own, so that silent servers delay no other probe.
type room struct {
	prompt, patient         int
	promptMost, patientMost int
}

// newRoom returns the room of one of several loops.
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

// has reports whether one more probe may begin.
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

// change moves a probe that waited for long to the patient ones; false: there is no room there.
func (r *room) change() bool {
	if !r.has(true) {
		return false
	}
	r.leave(false)
	r.enter(true)
	return true
}

// busy returns the number of running probes.
func (r *room) busy() int { return r.prompt + r.patient }

// marks is a bit set of numbers.
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
