package capture

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gopacket/gopacket/pcapgo"
)

// Print prints a capture as text, one packet a line, and returns its totals.
func Print(out io.Writer, in io.Reader) (Totals, error) {
	var totals Totals
	// Packets are printed as they arrive. Copy reads the same stream to count its blocks.
	pr, pw := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		var err error
		totals, err = Copy(pw, in)
		pw.CloseWithError(err)
		copied <- err
	}()
	err := printPackets(out, pr)
	pr.CloseWithError(err)
	if cause := <-copied; cause != nil {
		err = cause
	}
	return totals, err
}

func printPackets(out io.Writer, in io.Reader) error {
	r, err := pcapgo.NewNgReader(in, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read capture: %w", err)
	}
	for {
		data, info, options, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read capture: %w", err)
		}
		a := Peek(data)
		where := ""
		if info.InterfaceIndex == interfaceOut {
			where = "  sent "
		}
		_, err = fmt.Fprintf(out, "%s %s%s > %s length %d: %s\n", info.Timestamp.Format("15:04:05.000000"), where,
			endOf(a.Src.String(), a.SrcPort), endOf(a.Dst.String(), a.Port), info.Length, strings.Join(options.Comments, " "))
		if err != nil {
			return err
		}
	}
}

// endOf returns an address with its port, in the format of tcpdump.
func endOf(address string, port uint16) string {
	if port == 0 {
		return address
	}
	return fmt.Sprintf("%s.%d", address, port)
}
