package bench

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// palette holds the colors of the series. They are distinguishable without color vision.
var palette = []color.Color{
	color.RGBA{0x1b, 0x6c, 0xa8, 0xff}, color.RGBA{0xe0, 0x8e, 0x45, 0xff}, color.RGBA{0x5b, 0x8c, 0x5a, 0xff},
	color.RGBA{0x9a, 0x5c, 0x9e, 0xff}, color.RGBA{0x8c, 0x8c, 0x8c, 0xff}, color.RGBA{0x40, 0x40, 0x40, 0xff},
}

// Sizes of a plot: one group of bars per case, one bar per series.
const (
	barWidth   = 7 * vg.Millimeter
	groupWidth = 30 * vg.Millimeter
	plotMargin = 75 * vg.Millimeter
	plotHeight = 90 * vg.Millimeter
)

// writePlot draws the suite's plotted fields as bars, and its goals as ticks above their bars.
func writePlot(s Suite, rows []Row, path string) error {
	p := plot.New()
	p.Title.Text = s.Title
	p.Title.Padding = 2 * vg.Millimeter
	p.Y.Label.Text = s.Unit
	p.Y.Min = 0
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	rows = slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return slices.Contains(s.Unplotted, r.Case) })
	plotted := s.Plotted
	if s.Series != "" {
		rows, plotted = spread(rows, s.Series, s.Plotted[0])
	}
	var names []string
	for _, r := range rows {
		names = append(names, r.Case)
	}
	if len(names) == 0 {
		return nil
	}
	top := 0.0
	for i, series := range plotted {
		values := make(plotter.Values, len(rows))
		for j, r := range rows {
			if v := r.Get(series); !math.IsNaN(v) {
				values[j] = v
			}
		}
		top = max(top, slices.Max(values))
		bars, err := plotter.NewBarChart(values, barWidth)
		if err != nil {
			return fmt.Errorf("series %s: %w", series, err)
		}
		bars.Color = palette[i%len(palette)]
		bars.LineStyle.Width = 0
		bars.Offset = (vg.Length(i) - vg.Length(len(plotted)-1)/2) * barWidth
		p.Add(bars)
		p.Legend.Add(series, bars)
	}
	legend := true
	for _, g := range s.Goals {
		at := slices.Index(names, g.Case)
		if at < 0 || !slices.Contains(plotted, g.Field) {
			continue
		}
		top = max(top, g.limit())
		line, err := plotter.NewLine(plotter.XYs{{X: float64(at) - 0.35, Y: g.limit()}, {X: float64(at) + 0.35, Y: g.limit()}})
		if err != nil {
			return fmt.Errorf("goal of %s: %w", g.Case, err)
		}
		line.Color = color.RGBA{0xb0, 0x20, 0x20, 0xff}
		line.Width = vg.Points(1.5)
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		p.Add(line)
		if legend {
			p.Legend.Add("goal", line)
			legend = false
		}
	}
	p.Y.Max = top * 1.4 // space for the legend
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.6, float64(len(names))-0.4
	p.Legend.Padding = vg.Millimeter
	group := max(groupWidth, vg.Length(len(plotted)+1)*barWidth)
	return p.Save(plotMargin+vg.Length(len(rows))*group, plotHeight, path)
}

// spread merges all rows of a case that have the figure into one row. Its fields are the values of
// the series, in order of first appearance.
func spread(rows []Row, series, figure string) (out []Row, names []string) {
	at := map[string]int{}
	for _, r := range rows {
		name, value := r.text(series), r.Get(figure)
		if math.IsNaN(value) {
			continue
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		i, known := at[r.Case]
		if !known {
			i = len(out)
			at[r.Case] = i
			out = append(out, Row{Case: r.Case})
		}
		out[i].Fields = append(out[i].Fields, Field{name, value})
	}
	return out, names
}
