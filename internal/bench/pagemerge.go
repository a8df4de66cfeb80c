package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// signatureStart begins a line with a signature.
const signatureStart = "`shunt bench "

// merge adds the rows of the page whose cases are not in rows, in the suite's order, and returns
// their signatures from the page.
func (p Page) merge(s Suite, rows []Row, taken Taken) (merged []Row, signatures []string, err error) {
	text, err := os.ReadFile(filepath.Join(p.dir, pageName))
	if errors.Is(err, fs.ErrNotExist) {
		return rows, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read page: %w", err)
	}
	earlier, signatures := parseSection(string(text), s.Name)
	for _, c := range s.Cases {
		of := func(all []Row) []Row { return without(all, func(r Row) bool { return r.Case != c }) }
		if now := of(rows); len(now) > 0 {
			merged = append(merged, now...)
		} else {
			merged = append(merged, of(earlier)...)
		}
	}
	own := signatureStart + taken.command(s.Name) + "`,"
	return merged, slices.DeleteFunc(signatures, func(line string) bool { return strings.HasPrefix(line, own) }), nil
}

// parseSection reads the rows and the signatures of a suite's section, if the page has one.
func parseSection(page, name string) (rows []Row, signatures []string) {
	begin, end := markers(name)
	_, body, _ := strings.Cut(page, begin)
	body, _, _ = strings.Cut(body, end)
	var names []string
	for line := range strings.Lines(body) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, signatureStart) {
			signatures = append(signatures, line)
		}
		inner, ok := strings.CutPrefix(line, "| ")
		if !ok {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(inner, " |"), " | ")
		if names == nil {
			names = cells[1:]
			continue
		}
		row := Row{Case: strings.Trim(cells[0], "`")}
		for i, cell := range cells[1:] {
			if cell != "–" && i < len(names) {
				row.Fields = append(row.Fields, Field{names[i], parseCell(cell)})
			}
		}
		rows = append(rows, row)
	}
	return rows, signatures
}

// parseCell returns the value of a cell's text.
func parseCell(cell string) any {
	if n, err := strconv.Atoi(cell); err == nil {
		return n
	}
	if v, err := strconv.ParseFloat(cell, 64); err == nil {
		return v
	}
	return cell
}
