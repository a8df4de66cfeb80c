package quiclb

import "crypto/cipher"

// fourPass is the four-pass algorithm of draft-ietf-quic-load-balancers-21, section 5.4.2: a
// Feistel network over two halves of any length, with AES as its round function. If the number of
// bytes is odd, the halves share the middle byte: left has its high nibble, right its low one. The
// algorithm is a permutation of the values of one length, so different inputs have different
// outputs.
type fourPass struct {
	block       cipher.Block
	left, right [10]byte
	block16     [16]byte
	length      int // of the text, 2 to 20
}

// half returns the length of each half in bytes.
func (f *fourPass) half() int { return (f.length + 1) / 2 }

func (f *fourPass) split(text []byte) {
	f.length = len(text)
	copy(f.left[:], text[:f.half()])
	copy(f.right[:], text[f.length-f.half():])
	f.trim()
}

// trim clears the other half's nibble in each half.
func (f *fourPass) trim() {
	if f.length%2 == 1 {
		f.left[f.half()-1] &= 0xf0
		f.right[0] &= 0x0f
	}
}

func (f *fourPass) join(to []byte) {
	h := f.half()
	copy(to[f.length-h:], f.right[:h])
	middle := to[h-1]
	copy(to, f.left[:h])
	if f.length%2 == 1 {
		to[h-1] |= middle
	}
}

// pass mixes left into right when number is odd, and right into left when it is even. The same pass
// twice restores the input.
func (f *fourPass) pass(number byte) {
	from, to := &f.left, &f.right
	if number%2 == 0 {
		from, to = to, from
	}
	h := f.half()
	f.block16 = [16]byte{14: byte(f.length), 15: number}
	copy(f.block16[:14], from[:h])
	f.block.Encrypt(f.block16[:], f.block16[:])
	for i := range h {
		to[i] ^= f.block16[i]
	}
	f.trim()
}

// encrypt encrypts a text of 2 to 20 bytes in place.
func (f *fourPass) encrypt(text []byte) {
	f.split(text)
	for _, number := range []byte{1, 2, 3, 4} {
		f.pass(number)
	}
	f.join(text)
}

// decrypt reverses encrypt.
func (f *fourPass) decrypt(text []byte) {
	f.split(text)
	for _, number := range []byte{4, 3, 2, 1} {
		f.pass(number)
	}
	f.join(text)
}
