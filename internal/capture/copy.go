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
	// maxBlock is much larger than the largest frame with its comment.
	maxBlock = 1 << 20
)

// Totals holds the totals of a capture.
type Totals struct {
	// Packets is the number of packets written, including those written as sent.
	Packets uint64
	// Lost packets passed the filter, but were not read in time; the number is only known for
	// complete captures.
	Lost uint64
}

// Copy copies a capture until its end. It writes only whole blocks, so that the output is readable
// if the input breaks off.
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
