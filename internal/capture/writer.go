// Package capture writes the packets of a mux as pcapng, with the mux's verdict as the comment of
// each packet. tcpdump, tshark and Wireshark can read it.
package capture

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Packet is a packet with its verdict.
type Packet struct {
	Time time.Time
	// Length is the length of the frame as received, Data its first bytes.
	Length int
	Data   []byte
	// SentLength is the length of the frame as sent, 0 if it was not sent; Sent are its first
	// bytes.
	SentLength int
	Sent       []byte
	Verdict    Verdict
}

// Verdict is the content of a packet's comment. Empty fields are left out.
type Verdict struct {
	// Verdict is "forwarded", or the name of the reason why the packet was not.
	Verdict string
	// Action is the program's: "drop", "pass", "tx", "redirect".
	Action string
	// Beside are reasons that were counted in addition to the verdict.
	Beside []string
	// Service, Endpoint ("tcp/203.0.113.10:80") and Backend ("10.20.1.11:8080") are names.
	Service, Endpoint, Backend string
	// Outer is the destination of the tunnel.
	Outer string
}

// String returns the comment: key=value pairs, for searching and parsing.
func (v Verdict) String() string {
	var out strings.Builder
	for _, pair := range [][2]string{
		{"verdict", v.Verdict}, {"action", v.Action}, {"beside", strings.Join(v.Beside, ",")}, {"service", v.Service},
		{"endpoint", v.Endpoint}, {"backend", v.Backend}, {"outer", v.Outer},
	} {
		if pair[1] == "" {
			continue
		}
		if out.Len() > 0 {
			out.WriteByte(' ')
		}
		out.WriteString(pair[0] + "=" + pair[1])
	}
	return out.String()
}

// Interfaces of a capture: received packets, and sent packets.
const (
	interfaceIn = iota
	interfaceOut
)

// Writer writes one capture.
type Writer struct {
	ng   *pcapgo.NgWriter
	sent bool
}

// NewWriter begins a capture of the named node's interface. With sent, packets are also written as
// sent, on an interface of their own.
func NewWriter(w io.Writer, node string, snaplen int, sent bool) (*Writer, error) {
	of := func(name, description string) pcapgo.NgInterface {
		return pcapgo.NgInterface{Name: name, Description: description, LinkType: layers.LinkTypeEthernet, SnapLength: uint32(snaplen), TimestampResolution: 9, OS: "Linux"}
	}
	ng, err := pcapgo.NewNgWriterInterface(w, of(node+"-in", "packets as the mux got them"), pcapgo.NgWriterOptions{
		SectionInfo: pcapgo.NgSectionInfo{OS: "Linux", Application: "shunt capture"},
	})
	if err != nil {
		return nil, fmt.Errorf("begin capture: %w", err)
	}
	if sent {
		if _, err := ng.AddInterface(of(node+"-out", "packets as the mux sent them")); err != nil {
			return nil, fmt.Errorf("begin capture: %w", err)
		}
	}
	return &Writer{ng, sent}, ng.Flush()
}

// Write writes one packet, followed by the packet as sent.
func (w *Writer) Write(p Packet) error {
	if err := w.write(interfaceIn, p.Time, p.Length, p.Data, p.Verdict.String()); err != nil {
		return err
	}
	if !w.sent || p.SentLength == 0 {
		return nil
	}
	return w.write(interfaceOut, p.Time, p.SentLength, p.Sent, p.Verdict.String())
}

func (w *Writer) write(index int, at time.Time, length int, data []byte, comment string) error {
	info := gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(data), Length: length, InterfaceIndex: index}
	if err := w.ng.WritePacketWithOptions(info, data, pcapgo.NgPacketOptions{Comments: []string{comment}}); err != nil {
		return fmt.Errorf("write packet: %w", err)
	}
	return nil
}

// Flush writes buffered data.
func (w *Writer) Flush() error { return w.ng.Flush() }

// Close ends the capture with its counts: packets that passed the filter, and those lost because
// they were not read in time.
func (w *Writer) Close(received, lost uint64) error {
	err := w.ng.WriteInterfaceStats(interfaceIn, pcapgo.NgInterfaceStatistics{LastUpdate: time.Now(), PacketsReceived: received, PacketsDropped: lost})
	if err != nil {
		return fmt.Errorf("end capture: %w", err)
	}
	return w.ng.Flush()
}
