package load

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// MaxWords limits a message of an application in bytes.
const MaxWords = 256

// allowedGiven describes a valid load of an application.
const allowedGiven = "must be a number from 0 to 1e9, such as 0.75"

// ParseGiven parses a load that an application reports: a decimal number, with optional spaces and
// line ends around it.
func ParseGiven(text string) (float32, error) {
	text = strings.TrimSpace(text)
	v, err := strconv.ParseFloat(text, 32)
	if err != nil || strings.Trim(text, "0123456789.eE+-") != "" || !(v >= 0 && v <= MaxGiven) {
		return 0, fmt.Errorf("load: %q: %s", Short(text), allowedGiven)
	}
	return float32(v), nil
}

// Said is a report of an application over the socket of its host.
type Said struct {
	// Server is the server that the report is for; port 0 means all of its ports.
	Server netip.AddrPort
	Given  float32
}

// ParseSaid parses a line: a server's address, with or without :port, and its load.
func ParseSaid(line string) (Said, error) {
	fields := strings.Fields(line)
	if len(fields) != 2 {
		return Said{}, fmt.Errorf("line %q: must be a server and its load, such as 10.20.1.11:8080 0.75", Short(line))
	}
	server, err := netip.ParseAddrPort(fields[0])
	if err != nil {
		addr, err := netip.ParseAddr(fields[0])
		if err != nil {
			return Said{}, fmt.Errorf("server: %q: must be an IP address, with or without :port", Short(fields[0]))
		}
		server = netip.AddrPortFrom(addr, 0)
	}
	server = netip.AddrPortFrom(server.Addr().Unmap().WithZone(""), server.Port())
	given, err := ParseGiven(fields[1])
	return Said{server, given}, err
}

// Short returns text, truncated for an error message.
func Short(text string) string {
	const most = 64
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
