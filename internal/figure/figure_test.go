package figure

import (
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWritePNG(t *testing.T) {
	path := filepath.Join(t.TempDir(), "two.png")
	panel := Panel{Title: "two lines", X: "x", Y: "y", LogX: true, Ticks: []Tick{{1, "one"}, {10, "ten"}}, Lines: []Line{
		{Name: "up", X: []float64{1, 10}, Y: []float64{0, 1}}, {Name: "down", X: []float64{1, 10}, Y: []float64{1, 0}},
	}}
	if err := WritePNG(path, panel, panel); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	drawn, err := png.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	colours := map[[4]uint32]bool{}
	b := drawn.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			r, g, bl, a := drawn.At(x, y).RGBA()
			colours[[4]uint32{r, g, bl, a}] = true
		}
	}
	for _, c := range palette[:2] {
		r, g, bl, a := c.RGBA()
		if !colours[[4]uint32{r, g, bl, a}] {
			t.Errorf("no point has the colour %v", c)
		}
	}
	alone := Panel{LogX: true, LogY: true, Lines: []Line{{Name: "a point", X: []float64{70}, Y: []float64{3}}}}
	if err := WritePNG(path, alone); err != nil {
		t.Errorf("one point on logarithmic axes: %v", err)
	}
	panel.Lines[0].X = panel.Lines[0].X[:1]
	if err := WritePNG(path, panel); err == nil || !strings.Contains(err.Error(), "line up: 1 and 2 values") {
		t.Errorf("a line with too few values: %v", err)
	}
}

func TestWriteCSV(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	if err := WriteCSV(path, []string{"a", "b"}, [][]string{{"1", "with, comma"}, {"2", ""}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if want := "a,b\n1,\"with, comma\"\n2,\n"; err != nil || string(text) != want {
		t.Errorf("%q, %v; want %q", text, err, want)
	}
}
