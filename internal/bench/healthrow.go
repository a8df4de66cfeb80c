package bench

// burstFigure is the cost of probing all rules once.
type burstFigure struct {
	wall        float64 // s
	cpu, own    float64 // s of CPU time; own is the time charged to the checker's threads
	late, wrong uint64
}

// steadyFigure is the cost of a part of steady probing.
type steadyFigure struct {
	perProbe    float64 // s of CPU time
	own         float64 // the same, by the time charged to the checker's threads
	done        float64 // percentage of the due probes that began
	late, wrong uint64
	jitter      float64 // ms, the 99th percentile
	rules       int
	lost        uint64 // frames, on purpose
	seconds     float64
}

// healthFigures holds the figures of one engine in one case.
type healthFigures struct {
	rules    int
	bursts   []burstFigure
	steadies []steadyFigure
}

// row summarizes the figures: medians of times, and the maximum of late and wrong probes. It
// returns false for an engine without a turn.
func (f healthFigures) row(c healthCase, engine string) (Row, bool) {
	var wall, burst, own, perProbe, done, jitter []float64
	var late, wrong uint64
	for _, b := range f.bursts {
		wall, burst = append(wall, b.wall), append(burst, b.cpu)
		wrong = max(wrong, b.wrong)
		if !c.steadily {
			late = max(late, b.late)
			own = append(own, b.own/float64(f.rules))
		}
	}
	measured := f.rules
	for _, s := range f.steadies {
		perProbe, done, jitter = append(perProbe, s.perProbe), append(done, s.done), append(jitter, s.jitter)
		own = append(own, s.own)
		late, wrong = max(late, s.late), max(wrong, s.wrong)
		measured = s.rules
	}
	if c.steadily && len(perProbe) == 0 || !c.steadily && len(burst) == 0 {
		return Row{}, false
	}
	row := Row{Case: c.name, Fields: []Field{{engineField, engine}}}
	add := func(name string, value any) { row.Fields = append(row.Fields, Field{name, value}) }
	if len(wall) > 0 {
		add("wall_s", round(Median(wall)))
	}
	if !c.steadily {
		cpu := Median(burst)
		add("cpu_s", round(cpu))
		add("late", late)
		add("us_per_probe", round(1e6*cpu/float64(f.rules)))
		add("own_us", round(1e6*Median(own)))
		add("wrong", wrong)
		add("rules", measured)
		add("runs", len(burst))
		return row, true
	}
	per := Median(perProbe)
	add("cpu_s", round(per*float64(f.rules)))
	add("late", late)
	add("us_per_probe", round(1e6*per))
	add("own_us", round(1e6*Median(own)))
	add("wrong", wrong)
	add("rules", measured)
	add("runs", len(perProbe))
	add("cores", round(per*float64(f.rules)/healthInterval.Seconds()))
	add("jitter_p99_ms", round(Median(jitter)))
	add("done", round(Median(done)))
	if len(burst) > 0 {
		add("burst_cpu_s", round(Median(burst)))
	}
	return row, true
}
