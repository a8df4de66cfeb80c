package place

// mix is the finalizer of SplitMix64: every bit of the input changes half of the output's.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// hash returns a hash of the VIP. It need not resist collisions, because it only breaks ties.
func (k Key) hash() uint64 {
	h := mix(uint64(k.VNI) + 0x9e3779b97f4a7c15)
	a := k.VIP.As16()
	for i := 0; i < len(a); i += 8 {
		var word uint64
		for _, b := range a[i : i+8] {
			word = word<<8 | uint64(b)
		}
		h = mix(h ^ word)
	}
	return h
}

// Bucket returns the VIP's bucket of n.
func (k Key) Bucket(n int) int { return int(k.hash() % uint64(n)) }

// hashName is FNV-1a with a finalizer.
func hashName(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return mix(h)
}

// tie returns the rank of a mux among equal ones for a VIP. Both hashes are already mixed.
func tie(vip, mux uint64) uint64 { return (vip ^ mux) * 0x9e3779b97f4a7c15 }
