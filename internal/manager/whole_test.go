package manager

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

// TestRefusalsAreForwardedWhole: a truncated refusal, whose manager died, counts as a missing
// answer.
func TestRefusalsAreForwardedWhole(t *testing.T) {
	const said = `{"code":"not_found","message":"services/web: not found"}`
	res := &http.Response{StatusCode: http.StatusNotFound, Body: io.NopCloser(strings.NewReader(said))}
	if err := whole(res); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(res.Body); string(got) != said || err != nil {
		t.Errorf("passed on as %q, %v", got, err)
	}
	died := errors.New("connection reset by peer")
	res.Body = io.NopCloser(io.MultiReader(strings.NewReader(said[:10]), iotest.ErrReader(died)))
	if err := whole(res); !errors.Is(err, died) {
		t.Errorf("half of it: %v", err)
	}
}
