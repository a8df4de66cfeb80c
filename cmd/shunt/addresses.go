package main

import (
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Error texts for flags that take addresses.
const (
	listenable = "must be ADDRESS:PORT or :PORT, the port 0 to 65535"
	dialable   = "must be ADDRESS:PORT, the port 1 to 65535"
)

// hostName matches a DNS name (RFC 1123 section 2.1; resolvers accept "_" too).
var hostName = regexp.MustCompile(`^([a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?\.)*[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?\.?$`)

// isHost reports whether s is an address or a possible name. A name that ends in a number is
// refused because it would be a misspelt address.
func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	name := strings.TrimSuffix(s, ".")
	last := name[strings.LastIndex(name, ".")+1:]
	return hostName.MatchString(s) && strings.Trim(last, "0123456789") != ""
}

// splitAddress splits ADDRESS:PORT. The address may be empty. ok reports whether the address is an
// address or a possible name, and the port a number.
func splitAddress(s string) (host string, port uint16, ok bool) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16) // accepts no sign
	if err != nil {
		return "", 0, false
	}
	return host, uint16(n), host == "" || isHost(host)
}

// checkListen refuses a value that cannot be listened on.
func checkListen(flag, value string) error {
	if _, _, ok := splitAddress(value); !ok {
		return usagef("%s: %q: %s", flag, value, listenable)
	}
	return nil
}

// canDial reports whether value is an address that can be dialed.
func canDial(value string) bool {
	host, port, ok := splitAddress(value)
	return ok && host != "" && port != 0
}

// checkDial refuses a value that cannot be dialed.
func checkDial(flag, value string) error {
	if !canDial(value) {
		return usagef("%s: %q: %s", flag, value, dialable)
	}
	return nil
}

// checkDirectories refuses empty directory names. Each item is a flag and its value.
func checkDirectories(flags ...[2]string) error {
	for _, f := range flags {
		if f[1] == "" {
			return usagef(`%s: "": must be a directory`, f[0])
		}
	}
	return nil
}
