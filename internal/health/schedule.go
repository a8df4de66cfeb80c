package health

import "time"

// jitter is the share of the interval by which the distance of two probes varies, half of it to
// either side, so that muxes that started together drift apart.
const jitter = 0.1

// Second returns the wait between the first probe, which is made immediately, and the second. It is
// uniform over the interval, so that targets that were added together spread over it. random is
// uniform in [0, 1).
func Second(interval time.Duration, random float64) time.Duration {
	return time.Duration((1 - random) * float64(interval))
}

// Next returns the wait between later probes. random is uniform in [0, 1).
func Next(interval time.Duration, random float64) time.Duration {
	return time.Duration(float64(interval) * (1 + jitter*(random-0.5)))
}
