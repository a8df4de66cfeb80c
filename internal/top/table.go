package top

import (
	"fmt"
	"slices"
	"strconv"
)

// View is one of the tables.
type View int

// The views, in the order of their keys.
const (
	Services View = iota
	Backends
	Reasons
	Nodes
)

// Views are the names of the views.
var Views = []string{"services", "backends", "reasons", "nodes"}

// ParseView returns the view with a name.
func ParseView(name string) (View, bool) {
	i := slices.Index(Views, name)
	return View(i), i >= 0
}

// Table returns a view's rows, the heading first, ordered by the column named sort; numbers largest
// first. An empty sort keeps the order of Rates.
func (r Rates) Table(v View, sort string) [][]string {
	var cells [][]cell
	switch v {
	case Services:
		cells = [][]cell{heads("SERVICE", "PACKETS/S", "BITS/S", "REFUSED/S", "FLOWS", "ALIVE")}
		for _, s := range r.Services {
			cells = append(cells, []cell{text(s.Service), number(s.PPS), number(s.BPS), number(s.Refused), count(s.Flows), {fmt.Sprintf("%d/%d", s.Alive, s.Backends), float64(s.Alive), true}})
		}
	case Backends:
		cells = [][]cell{heads("SERVICE", "BACKEND", "PACKETS/S", "BITS/S", "FLOWS", "WEIGHT", "HEALTH")}
		for _, b := range r.Backends {
			cells = append(cells, []cell{text(b.Service), text(b.Backend), number(b.PPS), number(b.BPS), count(b.Flows), count(uint64(b.Weight)), text(b.Health)})
		}
	case Reasons:
		cells = [][]cell{heads("ROLE", "REASON", "CLASS", "PACKETS/S", "TOTAL")}
		for _, x := range r.Reasons {
			if x.Total > 0 {
				cells = append(cells, []cell{text(x.Role), text(x.Reason), text(x.Class), number(x.PPS), count(x.Total)})
			}
		}
	case Nodes:
		cells = [][]cell{heads("NODE", "ROLE", "STATE", "PACKETS/S", "BITS/S", "DROPS/S", "FLOWS", "REVISION")}
		for _, n := range r.Nodes {
			cells = append(cells, []cell{text(n.Node), text(n.Role), text(n.State), number(n.PPS), number(n.BPS), number(n.Drops), count(n.Flows), count(uint64(n.Revision))})
		}
	}
	order(cells, sort)
	rows := make([][]string, len(cells))
	for i, line := range cells {
		for _, c := range line {
			rows[i] = append(rows[i], c.text)
		}
	}
	return rows
}

// cell is a text with its sort value.
type cell struct {
	text    string
	value   float64
	numeric bool
}

func heads(names ...string) []cell {
	var out []cell
	for _, n := range names {
		out = append(out, text(n))
	}
	return out
}

func text(s string) cell { return cell{text: s} }

func count(n uint64) cell { return cell{strconv.FormatUint(n, 10), float64(n), true} }

func number(x float64) cell { return cell{Human(x), x, true} }

// Human returns a number in at most six characters: 0.5, 950, 12.3k, 4.56M.
func Human(x float64) string {
	for _, unit := range []string{"", "k", "M", "G", "T"} {
		switch {
		case x >= 999.5:
			x /= 1000
			continue
		case unit == "" && x < 10 && x != float64(int(x)):
			return strconv.FormatFloat(x, 'f', 1, 64)
		case unit == "" || x >= 99.95:
			return strconv.FormatFloat(x, 'f', 0, 64) + unit
		case x >= 9.995:
			return strconv.FormatFloat(x, 'f', 1, 64) + unit
		}
		return strconv.FormatFloat(x, 'f', 2, 64) + unit
	}
	return strconv.FormatFloat(x, 'f', 0, 64) + "P"
}

func order(cells [][]cell, by string) {
	i := slices.IndexFunc(cells[0], func(c cell) bool { return c.text == by })
	if i < 0 {
		return
	}
	slices.SortStableFunc(cells[1:], func(a, b []cell) int {
		switch {
		case a[i].numeric && a[i].value != b[i].value:
			if a[i].value > b[i].value {
				return -1
			}
			return 1
		case a[i].numeric || a[i].text == b[i].text:
			return 0
		case a[i].text < b[i].text:
			return -1
		}
		return 1
	})
}
