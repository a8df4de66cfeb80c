// Package textdiff compares texts by lines. It is pure.
package textdiff

import (
	"fmt"
	"sort"
	"strings"
)

// contextLines is how many equal lines surround a change.
const contextLines = 3

// line is one of an edit script: kept (' '), removed ('-') or added ('+').
type line struct {
	mark byte
	text string
}

// Unified returns the difference of two texts in the unified format (POSIX diff -u), "" when they are equal.
func Unified(fromName, toName, from, to string) string {
	script := edit(split(from), split(to))
	var out strings.Builder
	for begin := 0; begin < len(script); {
		first := nextChange(script, begin)
		if first == len(script) {
			break
		}
		if out.Len() == 0 {
			fmt.Fprintf(&out, "--- %s\n+++ %s\n", fromName, toName)
		}
		start := max(first-contextLines, begin)
		end := hunkEnd(script, first)
		writeHunk(&out, script, start, end)
		begin = end
	}
	return out.String()
}

// nextChange returns the index of the first line from i on that is not kept.
func nextChange(script []line, i int) int {
	for i < len(script) && script[i].mark == ' ' {
		i++
	}
	return i
}

// hunkEnd returns the end of the hunk around a change: changes nearer than twice the context share one.
func hunkEnd(script []line, change int) int {
	for {
		for change < len(script) && script[change].mark != ' ' {
			change++
		}
		next := nextChange(script, change)
		if next == len(script) || next-change > 2*contextLines {
			return min(change+contextLines, len(script))
		}
		change = next
	}
}

func writeHunk(out *strings.Builder, script []line, start, end int) {
	fromLine, toLine := 1, 1
	for _, l := range script[:start] {
		if l.mark != '+' {
			fromLine++
		}
		if l.mark != '-' {
			toLine++
		}
	}
	fromCount, toCount := 0, 0
	for _, l := range script[start:end] {
		if l.mark != '+' {
			fromCount++
		}
		if l.mark != '-' {
			toCount++
		}
	}
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(fromLine, fromCount), span(toLine, toCount))
	for _, l := range script[start:end] {
		fmt.Fprintf(out, "%c%s\n", l.mark, l.text)
	}
}

// span is "first,count"; an empty span begins after the line before it.
func span(first, count int) string {
	if count == 0 {
		first--
	}
	return fmt.Sprintf("%d,%d", first, count)
}

func split(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// maxCells bounds the memory of a comparison: 16 Mi cells of 4 bytes.
const maxCells = 16 << 20

// edit returns an edit script, removals before additions: a shortest one, except that texts too large for that are cut
// at lines which both have once.
func edit(from, to []string) []line {
	head := 0
	for head < len(from) && head < len(to) && from[head] == to[head] {
		head++
	}
	tail := 0
	for tail < len(from)-head && tail < len(to)-head && from[len(from)-1-tail] == to[len(to)-1-tail] {
		tail++
	}
	var script []line
	for _, text := range from[:head] {
		script = append(script, line{' ', text})
	}
	script = append(script, editMiddle(from[head:len(from)-tail], to[head:len(to)-tail])...)
	for _, text := range from[len(from)-tail:] {
		script = append(script, line{' ', text})
	}
	return script
}

func editMiddle(from, to []string) []line {
	if (len(from)+1)*(len(to)+1) <= maxCells {
		return editSmall(from, to)
	}
	var script []line
	i, j := 0, 0
	for _, a := range anchors(from, to) {
		script = append(script, edit(from[i:a.from], to[j:a.to])...)
		script = append(script, line{' ', from[a.from]})
		i, j = a.from+1, a.to+1
	}
	if i > 0 {
		return append(script, edit(from[i:], to[j:])...)
	}
	for _, text := range from {
		script = append(script, line{'-', text})
	}
	for _, text := range to {
		script = append(script, line{'+', text})
	}
	return script
}

// editSmall returns a shortest edit script, by the longest common subsequence.
func editSmall(from, to []string) []line {
	var script []line
	common := commonLengths(from, to)
	width := len(to) + 1
	i, j := 0, 0
	for i < len(from) && j < len(to) {
		switch {
		case from[i] == to[j]:
			script = append(script, line{' ', from[i]})
			i, j = i+1, j+1
		case common[(i+1)*width+j] >= common[i*width+j+1]:
			script = append(script, line{'-', from[i]})
			i++
		default:
			script = append(script, line{'+', to[j]})
			j++
		}
	}
	for _, text := range from[i:] {
		script = append(script, line{'-', text})
	}
	for _, text := range to[j:] {
		script = append(script, line{'+', text})
	}
	return script
}

// anchor is a line that both texts have.
type anchor struct{ from, to int }

// anchors are lines that both texts have exactly once, as many as are in the same order in both.
func anchors(from, to []string) []anchor {
	type places struct{ inFrom, inTo, from, to int }
	seen := make(map[string]*places, len(from))
	for i, text := range from {
		p := seen[text]
		if p == nil {
			p = &places{}
			seen[text] = p
		}
		p.inFrom, p.from = p.inFrom+1, i
	}
	for j, text := range to {
		if p := seen[text]; p != nil {
			p.inTo, p.to = p.inTo+1, j
		}
	}
	var once []anchor
	for i, text := range from {
		if p := seen[text]; p.inFrom == 1 && p.inTo == 1 {
			once = append(once, anchor{i, p.to})
		}
	}
	return increasing(once)
}

// increasing is a longest subsequence whose places in the second text grow; those in the first do (Fredman 1975).
func increasing(all []anchor) []anchor {
	// ends[k] is the index of the anchor that ends a subsequence of length k+1 soonest; before links to the one before.
	var ends []int
	before := make([]int, len(all))
	for i, a := range all {
		k := sort.Search(len(ends), func(k int) bool { return all[ends[k]].to >= a.to })
		before[i] = -1
		if k > 0 {
			before[i] = ends[k-1]
		}
		if k == len(ends) {
			ends = append(ends, i)
		} else {
			ends[k] = i
		}
	}
	out := make([]anchor, len(ends))
	for k, i := len(ends)-1, last(ends); k >= 0; k, i = k-1, before[i] {
		out[k] = all[i]
	}
	return out
}

func last(ends []int) int {
	if len(ends) == 0 {
		return -1
	}
	return ends[len(ends)-1]
}

// commonLengths holds, at i*(len(to)+1)+j, the length of the longest common subsequence of from[i:] and to[j:].
func commonLengths(from, to []string) []int32 {
	width := len(to) + 1
	lengths := make([]int32, (len(from)+1)*width)
	for i := len(from) - 1; i >= 0; i-- {
		for j := len(to) - 1; j >= 0; j-- {
			at := i*width + j
			if from[i] == to[j] {
				lengths[at] = lengths[at+width+1] + 1
			} else {
				lengths[at] = max(lengths[at+width], lengths[at+1])
			}
		}
	}
	return lengths
}
