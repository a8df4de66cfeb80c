package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Block types of pcapng (draft-ietf-opsawg-pcapng, section 4), and one option.
const (
	blockStatistics = 5
	blockPacket     = 6
	optionDropped   = 5 // isb_ifdrop
	// maxBlock is well above the largest frame with its comment.
	maxBlock = 1 << 20
)

// Totals are what a capture came to.
type Totals struct {
	// Packets written, those as they were sent included.
	Packets uint64
	// Lost packets passed the filter, but nobody read in time; known only of captures that came to their end.
	Lost uint64
}

// Copy copies a capture until its end. Only whole blocks are written: what is there when the input breaks off can be read.
func Copy(out io.Writer, in io.Reader) (Totals, error) {
	var totals Totals
	var head [8]byte
	for {
		if _, err := io.ReadFull(in, head[:]); errors.Is(err, io.EOF) {
			return totals, nil
		} else if err != nil {
			return totals, fmt.Errorf("read capture: %w", err)
		}
		kind, length := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
		if length < 12 || length%4 != 0 || length > maxBlock {
			return totals, fmt.Errorf("read capture: block of %d bytes: must be 12 to %d, a multiple of 4", length, maxBlock)
		}
		block := make([]byte, length)
		copy(block, head[:])
		if _, err := io.ReadFull(in, block[len(head):]); errors.Is(err, io.EOF) {
			return totals, fmt.Errorf("read capture: %w", io.ErrUnexpectedEOF)
		} else if err != nil {
			return totals, fmt.Errorf("read capture: %w", err)
		}
		switch kind {
		case blockPacket:
			totals.Packets++
		case blockStatistics:
			totals.Lost += dropped(block)
		}
		if _, err := out.Write(block); err != nil {
			return totals, fmt.Errorf("write capture: %w", err)
		}
	}
}

// dropped reads isb_ifdrop of an interface statistics block.
func dropped(block []byte) uint64 {
	for rest := block[8+12 : len(block)-4]; len(rest) >= 4; {
		code, length := binary.LittleEndian.Uint16(rest), int(binary.LittleEndian.Uint16(rest[2:]))
		if len(rest) < 4+length {
			return 0
		}
		if code == optionDropped && length == 8 {
			return binary.LittleEndian.Uint64(rest[4:])
		}
		rest = rest[min(len(rest), 4+(length+3)&^3):]
	}
	return 0
}
