package bench

import (
	"cmp"
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// curve is a plot of figures against a size that grows from case to case by powers of two.
type curve struct {
	title, x string
	points   map[string]float64 // size by case
}

// curveSuffix ends the file's name, after that of the suite.
const curveSuffix = "-curve.png"

// write draws one line per field over the cases that have a point. It draws nothing for fewer than
// two.
func (c *curve) write(rows []Row, fields []string, unit, path string) error {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return c.points[r.Case] == 0 })
	if len(rows) < 2 {
		return nil
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(c.points[a.Case], c.points[b.Case]) })
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.x, unit
	p.Title.Padding = 2 * vg.Millimeter
	p.X.Scale = plot.LogScale{}
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	var ticks plot.ConstantTicks
	for _, r := range rows {
		ticks = append(ticks, plot.Tick{Value: c.points[r.Case], Label: powers(c.points[r.Case])})
	}
	p.X.Tick.Marker = ticks
	for i, name := range fields {
		var at plotter.XYs
		for _, r := range rows {
			at = append(at, plotter.XY{X: c.points[r.Case], Y: r.Get(name)})
		}
		if err := addLine(p, name, at, palette[i%len(palette)]); err != nil {
			return fmt.Errorf("series %s: %w", name, err)
		}
	}
	return p.Save(160*vg.Millimeter, plotHeight, path)
}

// addLine draws a line with its points.
func addLine(p *plot.Plot, name string, at plotter.XYs, c color.Color) error {
	line, points, err := plotter.NewLinePoints(at)
	if err != nil {
		return err
	}
	line.Color, points.Color = c, c
	line.Width = vg.Points(1.5)
	p.Add(line, points)
	p.Legend.Add(name, line, points)
	return nil
}

// powers formats a size with its binary prefix.
func powers(v float64) string {
	for _, prefix := range []string{"", " Ki", " Mi"} {
		if v < 1<<10 {
			return fmt.Sprintf("%g%s", v, prefix)
		}
		v /= 1 << 10
	}
	return fmt.Sprintf("%g Gi", v)
}
