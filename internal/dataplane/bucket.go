package dataplane

// bucketShift is BUCKET_TIME_SHIFT of bpf/lib/bucket.h.
const bucketShift = 24

// bucketLeast is the least number of tokens a bucket holds, whatever its rate.
const bucketLeast = 16

// bucketOf turns tokens per second into what bucket_take wants, for a clock of so many ticks per second: the time of one
// token, and that of a full bucket, a tenth of a second's tokens.
func bucketOf(rate, ticks uint64) (interval, window uint64) {
	interval = max(ticks<<bucketShift/max(rate, 1), 1)
	return interval, interval * max(rate/10, bucketLeast)
}
