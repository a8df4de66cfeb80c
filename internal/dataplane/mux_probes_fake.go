package dataplane

// FakeProbes are probe tables without a program: tests answer instead of servers.
type FakeProbes struct{ *Probes }

// NewFakeProbes makes tables of so many rules, a power of two.
func NewFakeProbes(size uint32) *FakeProbes {
	return &FakeProbes{&Probes{
		rules: make([]muxProbeRule, size), results: make([]muxProbeResult, size),
		texts: newTextStore(make([]muxProbeText, probeTexts*size)), key: probeNumberKey(), refs: map[uint32]probeRefs{},
		word: func(hop NextHop) (uint64, error) { return macWord(hop.MAC) | 1<<muxNexthopBitNEXTHOP_VALID_SHIFT, nil },
	}}
}

// Answer notes what the present round of a rule came to, as the program does when a server's packet comes: the first final state
// stays. False when there is no round.
func (f *FakeProbes) Answer(number uint32, r ProbeResult) bool {
	round := load(&f.rules[number].Round)
	if round == 0 {
		return false
	}
	if was := f.Result(number, uint32(round)).State; was.Final() || r.State <= was {
		return true
	}
	store(&f.results[number].Time, r.Time)
	store(&f.results[number].Word, uint64(uint32(round))|uint64(r.Status)<<muxProbeResultShiftPROBE_RESULT_STATUS_SHIFT|
		uint64(r.State)<<muxProbeResultShiftPROBE_RESULT_STATE_SHIFT|uint64(r.Attempt)<<muxProbeResultShiftPROBE_RESULT_ATTEMPT_SHIFT)
	return true
}
