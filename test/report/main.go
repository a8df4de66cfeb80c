// Command report reads `go test -json` and prints a summary: one line per package, the output of
// failed tests, and totals. It exits 1 when a test failed or was skipped.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
)

// event is one line of `go test -json` (cmd/test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
}

// tally counts top-level tests and subtests by outcome.
type tally struct{ passed, failed, skipped int }

func main() {
	totals := flag.Bool("totals", false, "print only the closing line")
	flag.Parse()
	count, err := read(bufio.NewReaderSize(os.Stdin, 1<<20), *totals)
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", count.passed, count.failed, count.skipped)
	if count.failed+count.skipped > 0 || count.passed == 0 {
		os.Exit(1)
	}
}

// read consumes the stream. quiet suppresses all output except faults.
func read(r *bufio.Reader, quiet bool) (tally, error) {
	var count tally
	output := map[string][]string{}
	decoder := json.NewDecoder(r)
	for decoder.More() {
		var e event
		if err := decoder.Decode(&e); err != nil {
			return count, fmt.Errorf("read test events: %w", err)
		}
		id := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			output[id] = append(output[id], e.Output)
		case "pass", "fail", "skip":
			end(&count, e, output[id], quiet)
			delete(output, id)
		}
	}
	return count, nil
}

// end counts one finished test or package.
func end(count *tally, e event, output []string, quiet bool) {
	if e.Test == "" {
		if e.Action == "fail" {
			count.failed++
			fmt.Printf("FAIL %s\n%s", e.Package, strings.Join(output, ""))
		} else if !quiet && e.Action == "pass" {
			fmt.Printf("ok   %-60s %6.2fs\n", e.Package, e.Elapsed)
		}
		return
	}
	switch e.Action {
	case "pass":
		count.passed++
	case "fail":
		count.failed++
		fmt.Printf("FAIL %s %s\n%s", e.Package, e.Test, strings.Join(output, ""))
	case "skip":
		count.skipped++
		fmt.Printf("SKIP %s %s (a skipped test is a failure)\n%s", e.Package, e.Test, strings.Join(output, ""))
	}
}
