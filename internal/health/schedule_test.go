package health

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWaitsStayNearTheInterval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "interval"))
		random := rapid.Float64Range(0, 0.999999).Draw(t, "random")
		if w := Second(interval, random); w <= 0 || w > interval {
			t.Fatalf("second probe after %v of %v", w, interval)
		}
		if w := Next(interval, random); w < interval*94/100 || w > interval*106/100 {
			t.Fatalf("next probe after %v of %v", w, interval)
		}
	})
}
