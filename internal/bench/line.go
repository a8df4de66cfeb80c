package bench

import "time"

// Sizes of the walk through memory.
const (
	lineWords = 8       // of a cache line
	lineCount = 1 << 20 // lines: 64 MiB
	lineSteps = 1 << 10 // in a stretch
)

// lineTimer measures the current latency of a cache line that is in no near cache. On a shared
// machine it varies by a factor of ten, and the figures of large tables with it.
type lineTimer struct {
	words []uint64 // the first word of each line is the number of the next
	at    uint64
}

func newLineTimer() *lineTimer {
	t := &lineTimer{words: make([]uint64, lineCount*lineWords)}
	// A linear congruential generator of full period visits every line once before the first line
	// again.
	const a, c = 0x9e3779b5, 0x6a09e667
	for i := range uint64(lineCount) {
		t.words[i*lineWords] = (i*a + c) % lineCount
	}
	return t
}

// median returns the median time in ns of a read that must end before the next can begin.
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
