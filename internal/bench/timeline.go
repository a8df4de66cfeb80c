package bench

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// timeline is a plot of figures over time: the rows of one case, one for each step. Its figures
// differ by powers of ten.
type timeline struct {
	// of is the case.
	of, title, x, y string
	// at is the field with the time. marked is the field that is not 0 during the event of the
	// plot.
	at, marked string
	lines      []timelineLine
}

// timelineLine is a field and its name in the legend.
type timelineLine struct{ field, name string }

// timelineSuffix ends the file's name, after that of the suite.
const timelineSuffix = "-timeline.png"

// split separates the rows of the timeline's case.
func (t *timeline) split(rows []Row) (others, drawn []Row) {
	if t == nil {
		return rows, nil
	}
	for _, r := range rows {
		if r.Case == t.of {
			drawn = append(drawn, r)
		} else {
			others = append(others, r)
		}
	}
	return others, drawn
}

// write draws a line per field, interrupted where there is no figure. It draws nothing for fewer
// than two rows.
func (t *timeline) write(rows []Row, path string) error {
	if len(rows) < 2 {
		return nil
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = t.title, t.x, t.y
	p.Title.Padding = 2 * vg.Millimeter
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	least, most := math.Inf(1), 0.0
	for i, l := range t.lines {
		legend := true
		for _, part := range t.parts(rows, l.field) {
			for _, at := range part {
				least, most = min(least, at.Y), max(most, at.Y)
			}
			line, points, err := plotter.NewLinePoints(part)
			if err != nil {
				return fmt.Errorf("series %s: %w", l.field, err)
			}
			line.Color, points.Color = palette[i%len(palette)], palette[i%len(palette)]
			line.Width = vg.Points(1.5)
			p.Add(line, points)
			if legend {
				p.Legend.Add(l.name, line, points)
				legend = false
			}
		}
	}
	if most == 0 {
		return nil
	}
	// Leave space for the legend.
	p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most))+1)
	for _, x := range t.turns(rows) {
		line, err := plotter.NewLine(plotter.XYs{{X: x, Y: p.Y.Min}, {X: x, Y: p.Y.Max}})
		if err != nil {
			return fmt.Errorf("mark: %w", err)
		}
		line.Color = color.RGBA{0xb0, 0x20, 0x20, 0xff}
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		p.Add(line)
	}
	return p.Save(200*vg.Millimeter, plotHeight, path)
}

// parts returns the consecutive rows that have a figure above 0.
func (t *timeline) parts(rows []Row, field string) (out []plotter.XYs) {
	var part plotter.XYs
	for _, r := range rows {
		if v := r.Get(field); v > 0 {
			part = append(part, plotter.XY{X: r.Get(t.at), Y: v})
			continue
		}
		if part != nil {
			out, part = append(out, part), nil
		}
	}
	if part != nil {
		out = append(out, part)
	}
	return out
}

// turns returns the times at which the marked field changes between 0 and another value.
func (t *timeline) turns(rows []Row) (out []float64) {
	for i := 1; i < len(rows); i++ {
		if (rows[i].Get(t.marked) != 0) != (rows[i-1].Get(t.marked) != 0) {
			out = append(out, rows[i].Get(t.at))
		}
	}
	return out
}
