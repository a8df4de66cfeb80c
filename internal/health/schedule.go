package health

import "time"

// jitter is the share of the interval by which two probes' distance varies, half of it to either side: muxes that
// started together drift apart.
const jitter = 0.1

// Second is the wait between the first probe, which is made at once, and the second: uniform over the interval, so
// that targets that arrived together spread over it. random is uniform in [0, 1).
func Second(interval time.Duration, random float64) time.Duration {
	return time.Duration((1 - random) * float64(interval))
}

// Next is the wait between later probes. random is uniform in [0, 1).
func Next(interval time.Duration, random float64) time.Duration {
	return time.Duration(float64(interval) * (1 + jitter*(random-0.5)))
}
