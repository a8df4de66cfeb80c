// Package figure draws the results of simulations and measurements, and writes them as tables.
package figure

import (
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Panel is one diagram.
type Panel struct {
	Title, X, Y string
	// LogX and LogY make an axis logarithmic. All its values must be above 0.
	LogX, LogY bool
	// MaxY is the upper end of the vertical axis. 0 means that of the data. The lower end is 0, or
	// that of the data with LogY.
	MaxY float64
	// Ticks, if any, are the only ones of the horizontal axis.
	Ticks []Tick
	Lines []Line
}

// Tick is a labeled position of the horizontal axis.
type Tick struct {
	At    float64
	Label string
}

// Line is a series of points, joined in their order.
type Line struct {
	Name string
	X, Y []float64 // of equal length
}

// Sizes of a panel.
const (
	panelWidth  = 200 * vg.Millimeter
	legendWidth = 48 * vg.Millimeter // right of the diagram
	panelHeight = 95 * vg.Millimeter
	dotsPerInch = 130
)

// palette holds the colors of lines in order. They are distinguishable without color vision.
var (
	palette = []color.Color{
		color.RGBA{0x8c, 0x8c, 0x8c, 0xff}, color.RGBA{0xe0, 0x8e, 0x45, 0xff}, color.RGBA{0x9a, 0x5c, 0x9e, 0xff},
		color.RGBA{0x5b, 0x8c, 0x5a, 0xff}, color.RGBA{0xb0, 0x20, 0x20, 0xff}, color.RGBA{0x1b, 0x6c, 0xa8, 0xff}, color.RGBA{0x40, 0x40, 0x40, 0xff},
	}
	// shapes holds the shapes of points: one more than colors, so that both together distinguish
	// many lines.
	shapes = []draw.GlyphDrawer{draw.CrossGlyph{}, draw.TriangleGlyph{}, draw.SquareGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.CircleGlyph{}, draw.PlusGlyph{}, draw.BoxGlyph{}}
)

// WritePNG draws panels below one another into a file.
func WritePNG(path string, panels ...Panel) error {
	canvas := vgimg.NewWith(vgimg.UseWH(panelWidth, panelHeight*vg.Length(len(panels))), vgimg.UseDPI(dotsPerInch), vgimg.UseBackgroundColor(color.White))
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: 4 * vg.Millimeter, PadTop: 2 * vg.Millimeter, PadBottom: 2 * vg.Millimeter, PadRight: 4 * vg.Millimeter, PadLeft: 2 * vg.Millimeter}
	all := draw.New(canvas)
	for i := range panels {
		p, legend, err := panels[i].plot()
		if err != nil {
			return fmt.Errorf("draw %s: %w", path, err)
		}
		tile := tiles.At(all, 0, i)
		p.Draw(draw.Crop(tile, 0, -legendWidth, 0, 0))
		legend.Draw(draw.Crop(tile, tile.Max.X-tile.Min.X-legendWidth, 0, 0, -10*vg.Millimeter))
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(file); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return file.Close()
}

// plot makes the diagram and its legend.
func (p *Panel) plot() (*plot.Plot, plot.Legend, error) {
	out, legend := plot.New(), plot.NewLegend()
	out.Title.Text, out.X.Label.Text, out.Y.Label.Text = p.Title, p.X, p.Y
	out.Title.Padding = 2 * vg.Millimeter
	legend.Top, legend.Left, legend.XOffs = true, true, 2*vg.Millimeter
	legend.Padding = vg.Millimeter
	out.Add(plotter.NewGrid())
	if p.LogX {
		out.X.Scale, out.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	if p.LogY {
		out.Y.Scale, out.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	if len(p.Ticks) > 0 {
		var ticks plot.ConstantTicks
		for _, t := range p.Ticks {
			ticks = append(ticks, plot.Tick{Value: t.At, Label: t.Label})
		}
		out.X.Tick.Marker = ticks
	}
	for i := range p.Lines {
		if err := p.Lines[i].add(out, &legend, i); err != nil {
			return nil, legend, err
		}
	}
	if !p.LogY {
		out.Y.Min = 0
	}
	// A logarithmic axis needs a length.
	for _, axis := range []*plot.Axis{&out.X, &out.Y} {
		if _, log := axis.Scale.(plot.LogScale); log && axis.Min >= axis.Max {
			axis.Min, axis.Max = axis.Min/2, axis.Max*2
		}
	}
	if p.MaxY > 0 {
		out.Y.Max = p.MaxY
	}
	return out, legend, nil
}

// add draws the line as number i.
func (l *Line) add(to *plot.Plot, legend *plot.Legend, i int) error {
	if len(l.X) != len(l.Y) {
		return fmt.Errorf("line %s: %d and %d values", l.Name, len(l.X), len(l.Y))
	}
	points := make(plotter.XYs, len(l.X))
	for j := range points {
		points[j].X, points[j].Y = l.X[j], l.Y[j]
	}
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("line %s: %w", l.Name, err)
	}
	line.Color, marks.Color = palette[i%len(palette)], palette[i%len(palette)]
	line.Width, marks.Radius = vg.Points(1.3), vg.Points(2.4)
	marks.Shape = shapes[i%len(shapes)]
	to.Add(line, marks)
	legend.Add(l.Name, line, marks)
	return nil
}
