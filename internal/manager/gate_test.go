package manager_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/store"
)

// zeros is a body that counts the bytes read.
type zeros struct{ left, read int }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), z.left)
	z.left, z.read = z.left-n, z.read+n
	return n, nil
}

// TestStrangersBodiesAreNotRead checks that a client without rights cannot make the manager hold a
// large request.
func TestStrangersBodiesAreNotRead(t *testing.T) {
	r := newRig(t, store.NewMemory())
	hc := r.httpClient(r.as(nil, "", "none"))
	for _, c := range []struct {
		procedure string
		want      int
	}{
		{shuntv1connect.ManagerApplyProcedure, http.StatusUnauthorized},
		{shuntv1connect.NodeProtocolJoinProcedure, http.StatusTooManyRequests},
	} {
		body := &zeros{left: 32 << 20}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+r.addr+c.procedure, io.NopCloser(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/proto")
		res, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.want || body.read > 16<<20 {
			t.Errorf("%s: status %d after %d bytes: must be %d after at most what a window holds", c.procedure, res.StatusCode, body.read, c.want)
		}
	}
}
