package quiclb

import "crypto/cipher"

// fourPass is the four-pass algorithm of draft-ietf-quic-load-balancers-21, section 5.4.2: a Feistel network over two halves of any
// length, with AES as its round function. Where the number of bytes is odd the halves share the middle one: left has its high nibble, right its
// low one. It permutes the values of its length, so that different inputs have different outputs.
type fourPass struct {
	block       cipher.Block
	left, right [10]byte
	block16     [16]byte
	length      int // of the text, 2 to 20
}

// half is the length of both halves in bytes.
func (f *fourPass) half() int { return (f.length + 1) / 2 }

func (f *fourPass) split(text []byte) {
	f.length = len(text)
	copy(f.left[:], text[:f.half()])
	copy(f.right[:], text[f.length-f.half():])
	f.trim()
}

// trim keeps the nibble of the other half out of each.
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

// pass mixes left into right when it is odd, and right into left when it is even. Done twice it is undone.
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

// encrypt replaces a text of 2 to 20 bytes.
func (f *fourPass) encrypt(text []byte) {
	f.split(text)
	for _, number := range []byte{1, 2, 3, 4} {
		f.pass(number)
	}
	f.join(text)
}

// decrypt undoes encrypt.
func (f *fourPass) decrypt(text []byte) {
	f.split(text)
	for _, number := range []byte{4, 3, 2, 1} {
		f.pass(number)
	}
	f.join(text)
}
