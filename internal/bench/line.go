package bench

import "time"

// Sizes of the walk through memory.
const (
	lineWords = 8       // of a cache line
	lineCount = 1 << 20 // lines: 64 MiB
	lineSteps = 1 << 10 // in a stretch
)

// lineTimer tells what a cache line costs that is in no near cache, at the moment: on a shared machine that varies by a
// factor of ten, and the figures of large tables with it.
type lineTimer struct {
	words []uint64 // the first word of each line is the number of the next
	at    uint64
}

func newLineTimer() *lineTimer {
	t := &lineTimer{words: make([]uint64, lineCount*lineWords)}
	// A linear congruential generator of full period: every line is visited once before the first comes again.
	const a, c = 0x9e3779b5, 0x6a09e667
	for i := range uint64(lineCount) {
		t.words[i*lineWords] = (i*a + c) % lineCount
	}
	return t
}

// median is the time in ns of a read that must end before the next can begin.
func (t *lineTimer) median() float64 {
	var ns []float64
	for range 64 {
		start := time.Now()
		for range lineSteps {
			t.at = t.words[t.at*lineWords]
		}
		ns = append(ns, float64(time.Since(start))/lineSteps)
	}
	return Median(ns)
}
