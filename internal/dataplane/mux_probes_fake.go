package dataplane

// FakeProbes are probe tables without a program: tests answer instead of servers.
type FakeProbes struct{ *Probes }

// NewFakeProbes makes tables of so many rules, a power of two.
func NewFakeProbes(size uint32) *FakeProbes {
	return &FakeProbes{&Probes{
		rules: make([]muxProbeRule, size), results: make([]muxProbeResult, size),
		texts: newTextStore(make([]muxProbeText, probeTexts(size))), key: probeNumberKey(),
		word: func(hop NextHop) (uint64, error) { return macWord(hop.MAC) | 1<<muxNexthopBitNEXTHOP_VALID_SHIFT, nil },
	}}
}

// Answer notes what the round of a rule with this initial sequence number came to, as the program does when a server's packet comes:
// the first final state stays. Of other rounds nothing is noted.
func (f *FakeProbes) Answer(number, isn uint32, r ProbeResult) {
	if round := load(&f.rules[number].Round); round == 0 || uint32(round) != isn {
		return
	}
	if was := f.Result(number, isn).State; was.Final() || r.State <= was {
		return
	}
	store(&f.results[number].Time, r.Time)
	store(&f.results[number].Word, uint64(isn)|uint64(r.Status)<<muxProbeResultShiftPROBE_RESULT_STATUS_SHIFT|
		uint64(r.State)<<muxProbeResultShiftPROBE_RESULT_STATE_SHIFT|uint64(r.Attempt)<<muxProbeResultShiftPROBE_RESULT_ATTEMPT_SHIFT)
}
