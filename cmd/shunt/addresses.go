package main

import (
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// What the flags that take addresses allow.
const (
	listenable = "must be ADDRESS:PORT or :PORT, the port 0 to 65535"
	dialable   = "must be ADDRESS:PORT, the port 1 to 65535"
)

// hostName is a name in DNS (RFC 1123 section 2.1; resolvers take "_" too).
var hostName = regexp.MustCompile(`^([a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?\.)*[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?\.?$`)

// isHost tells whether s is an address or can be a name; one that ends in a number would be a misspelt address.
func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	name := strings.TrimSuffix(s, ".")
	last := name[strings.LastIndex(name, ".")+1:]
	return hostName.MatchString(s) && strings.Trim(last, "0123456789") != ""
}

// splitAddress takes ADDRESS:PORT apart. The address may be empty; ok tells whether it can be one, or a name, and the port a
// number.
func splitAddress(s string) (host string, port uint16, ok bool) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16) // takes no sign
	if err != nil {
		return "", 0, false
	}
	return host, uint16(n), host == "" || isHost(host)
}

// checkListen refuses what nothing can listen on.
func checkListen(flag, value string) error {
	if _, _, ok := splitAddress(value); !ok {
		return usagef("%s: %q: %s", flag, value, listenable)
	}
	return nil
}

// canDial tells whether something may be reached there.
func canDial(value string) bool {
	host, port, ok := splitAddress(value)
	return ok && host != "" && port != 0
}

// checkDial refuses what nothing can be reached at.
func checkDial(flag, value string) error {
	if !canDial(value) {
		return usagef("%s: %q: %s", flag, value, dialable)
	}
	return nil
}

// checkDirectories refuses empty names of directories: pairs of flag and value.
func checkDirectories(flags ...[2]string) error {
	for _, f := range flags {
		if f[1] == "" {
			return usagef(`%s: "": must be a directory`, f[0])
		}
	}
	return nil
}
