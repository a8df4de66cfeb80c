package bench

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// snatParts holds the managers' metric of the parts of leases: the total seconds of each part, and
// the number of leases.
type snatParts map[string]struct{ sum, count float64 }

// partNames are the parts in their order.
var partNames = []string{"queue", "store", "muxes"}

// parts reads the metric of all managers, only one of which leads.
func (r *snatRig) parts(ctx context.Context) (snatParts, error) {
	out := snatParts{}
	for _, addr := range r.scrapes {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
		if err != nil {
			return nil, err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), "} ")
			part, what := partOf(name)
			if part == "" {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				res.Body.Close()
				return nil, fmt.Errorf("metrics: %q: must be a number", lines.Text())
			}
			p := out[part]
			if what == "sum" {
				p.sum += n
			} else {
				p.count += n
			}
			out[part] = p
		}
		res.Body.Close()
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// partOf returns the part of a series, and whether it is a sum or a count, or "".
func partOf(series string) (part, what string) {
	rest, ok := strings.CutPrefix(series, "shunt_snat_lease_seconds_")
	if !ok {
		return "", ""
	}
	what, labels, _ := strings.Cut(rest, "{")
	if _, part, ok = strings.Cut(labels, `part="`); !ok || what != "sum" && what != "count" {
		return "", ""
	}
	part, _, _ = strings.Cut(part, `"`)
	return part, what
}

// since returns the means of the parts since an earlier reading, in ms, as fields.
func (p snatParts) since(before snatParts) (out []Field) {
	for _, name := range partNames {
		if n := p[name].count - before[name].count; n > 0 {
			out = append(out, Field{name + "_ms", (p[name].sum - before[name].sum) / n * 1000})
		}
	}
	return out
}
