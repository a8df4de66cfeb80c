package dataplane

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The differential fuzzer gives the same packets, in the same states of the tables, to the program and to the model, and
// compares verdict, bytes, reasons, counters and tables after every one. By hand:
//
//	go test ./internal/dataplane -run DifferentialFuzz -fuzzpackets 50000000 -fuzzseed 1 -timeout 0
var (
	fuzzPackets  = flag.Int("fuzzpackets", 150_000, "packets of TestDifferentialFuzz")
	fuzzSeed     = flag.Uint64("fuzzseed", 0, "first seed of TestDifferentialFuzz; 0: the kept ones and a fresh one")
	fuzzProgress = flag.String("fuzzprogress", "", "file that TestDifferentialFuzz appends a line to every minute")
)

// fuzzEpisode is the number of packets from one seed. Every episode begins with empty tables, so that it can be run alone.
const fuzzEpisode = 25_000

// keptSeeds are those of testdata/mux_fuzz_seeds: a seed, a number of packets, and what it found.
func keptSeeds(t testing.TB) (seeds []uint64, packets []int) {
	f, err := os.Open("testdata/mux_fuzz_seeds")
	must(t, err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		seed, err := strconv.ParseUint(fields[0], 10, 64)
		must(t, err)
		n, err := strconv.Atoi(fields[1])
		must(t, err)
		seeds, packets = append(seeds, seed), append(packets, n)
	}
	return seeds, packets
}

// TestDifferentialFuzz runs the kept seeds and then a fresh one, or those from -fuzzseed on.
func TestDifferentialFuzz(t *testing.T) {
	f := newFuzz(t)
	left, seed := *fuzzPackets, *fuzzSeed
	if seed == 0 {
		seeds, packets := keptSeeds(t)
		for i := range seeds {
			f.episode(seeds[i], packets[i])
			left -= packets[i]
		}
		seed = 1 + rand.Uint64N(1<<40)
	}
	t.Logf("from seed %d on", seed)
	begin, last := time.Now(), time.Now()
	for first, done := seed, 0; left > 0; seed++ {
		n := min(left, fuzzEpisode)
		f.episode(seed, n)
		left, done = left-n, done+n
		if *fuzzProgress != "" && (time.Since(last) > time.Minute || left == 0) {
			last = time.Now()
			f.progress(fmt.Sprintf("%s packets %d seeds %d-%d differences 0 rate %.0f/s", last.UTC().Format(time.TimeOnly),
				done, first, seed, float64(done)/time.Since(begin).Seconds()))
		}
	}
	f.report()
}

// progress appends a line to the file of -fuzzprogress.
func (f *fuzz) progress(line string) {
	file, err := os.OpenFile(*fuzzProgress, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(f.t, err)
	defer file.Close()
	_, err = fmt.Fprintln(file, line)
	must(f.t, err)
}

// fuzzUnmet are reasons that the fuzzer cannot meet: without a driver, without routes, without a bug, without endpoints of path nat or with Track, which have
// tests of their own.
var fuzzUnmet = []string{
	"no_headroom", "internal", "fib_fallback", "probe_no_room",
	"nat_replied", "nat_full", "nat_no_address", "nat_fragment", "nat_unknown", "nat_expired", "nat_displaced", "track_full", "track_displaced", "fragment_limited",
}

// report says how often each reason was met.
func (f *fuzz) report() {
	f.t.Helper()
	var never []string
	for i, r := range MuxReasons().All {
		if f.met[i] == 0 {
			never = append(never, r.Name)
			if f.packets >= 150_000 && !slices.Contains(fuzzUnmet, r.Name) {
				f.t.Errorf("the fuzzer did not meet reason %s: change the kept seeds", r.Name)
			}
		}
	}
	f.t.Logf("%d packets, %d states, %d sweeps; never: %v", f.packets, f.states, f.sweeps, never)
	if testing.Verbose() {
		for i, r := range MuxReasons().All {
			f.t.Logf("%12d %s", f.met[i], r.Name)
		}
	}
}
