package lb

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of a check's fields, in bytes unless noted. The data to send, without headers, fits into
// one packet.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
	minTimeout  = time.Millisecond
	maxCount    = 100
	maxJitter   = 50

	maxPath       = 1024
	maxMethod     = 32
	maxHeaderName = 256
	maxHeaders    = 32
	maxHeaderText = 8 << 10 // all of them
	maxBody       = 1024
	maxPayload    = 1024
	maxService    = 256
	maxAnswer     = 512
	maxProgram    = 1024
	maxArguments  = 64
	maxArgument   = 1024
	maxCA         = 64 << 10

	allowedCount      = "must be 1 to 100"
	allowedJitter     = "must be 1 to 50"
	allowedFast       = "must be 100ms to the interval"
	allowedBody       = "must be a regular expression (RE2) of 1 to 1024 bytes"
	allowedPayload    = "must be 1 to 1024 bytes of UTF-8"
	allowedHex        = "must be 1 to 1024 bytes of two hexadecimal digits each, such as \"0d0a\""
	allowedService    = "must be the name of a gRPC service, printable ASCII without spaces, at most 256 bytes"
	allowedDNSName    = "must be a DNS name such as www.example.com, at most 253 bytes"
	allowedAnswer     = "must be 1 to 512 bytes of printable text"
	allowedProgram    = "must be an absolute path without . and .., of printable ASCII without spaces, at most 1024 bytes"
	allowedServerName = "must be a DNS name or an address, at most 253 bytes"
	allowedCA         = "must be certificates in PEM and nothing else, at most 65536 bytes"
	allowedMethod     = "must be a method such as GET, at most 32 bytes, and not CONNECT"

	whatIsPlain = "tcp without send and expect, and http of version 1.1 with method GET or HEAD and without body"
)

// DNSTypes are the record types that a DNS check may query.
var DNSTypes = []string{"A", "AAAA", "CAA", "CNAME", "MX", "NS", "PTR", "SOA", "SRV", "TXT"}

var (
	hostForm = regexp.MustCompile(`^[A-Za-z0-9_.:\[\]-]{1,253}$`)
	nameForm = regexp.MustCompile(`^(\.|[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?)$`)
)

// healthCheck checks one check alone.
func (f *faults) healthCheck(path string, c *Check) {
	kind := path + "." + c.KindText()
	if *c != c.own() {
		f.add(kind, "", "must have no fields of other kinds")
	}
	switch c.Kind {
	case CheckTCP:
		f.payloads(kind, c)
	case CheckHTTP:
		f.http(kind, c)
	case CheckICMP:
	case CheckGRPC:
		if c.Service != "" && !visible(c.Service, maxService) {
			f.add(kind+".service", c.Service, allowedService)
		}
		f.tls(kind+".tls", c)
	case CheckUDP:
		if c.Send == "" && c.SendHex == "" {
			f.add(kind+".send", "", "is missing, "+allowedPayload)
		}
		f.payloads(kind, c)
	case CheckDNS:
		f.dns(kind, c)
	case CheckExternal:
		f.external(kind, c)
	default:
		f.add(path, c.Kind, anyOf(CheckKinds...))
	}
	f.times(path, c)
}

func (f *faults) times(path string, c *Check) {
	if c.Interval < minInterval || c.Interval > maxInterval {
		f.add(path+".interval", durationText(c.Interval), "must be 100ms to 1h")
	} else {
		if c.Timeout < minTimeout || c.Timeout > c.Interval {
			f.add(path+".timeout", durationText(c.Timeout), "must be 1ms to the interval, "+durationText(c.Interval))
		}
		if c.Fast != 0 && (c.Fast < minInterval || c.Fast > c.Interval) {
			f.add(path+".fast", durationText(c.Fast), allowedFast+", "+durationText(c.Interval))
		}
	}
	if c.Jitter < 1 || c.Jitter > maxJitter {
		f.add(path+".jitter", fmt.Sprint(c.Jitter), allowedJitter)
	}
	if c.Rise < 1 || c.Rise > maxCount {
		f.add(path+".rise", fmt.Sprint(c.Rise), allowedCount)
	}
	if c.Fall < 1 || c.Fall > maxCount {
		f.add(path+".fall", fmt.Sprint(c.Fall), allowedCount)
	}
	f.choice(path+".initial", c.Initial, nil, InitialDown, InitialUp)
}

// Allowed paths and Host headers of requests.
const (
	allowedPath = "must begin with / and hold printable ASCII without spaces, at most 1024 bytes"
	allowedHost = "must be a host name or an address, with or without :port, at most 253 bytes"
)

func (f *faults) http(path string, c *Check) {
	if !rooted(c.Path, maxPath) {
		f.add(path+".path", c.Path, allowedPath)
	}
	if c.Host != "" && !hostForm.MatchString(c.Host) {
		f.add(path+".host", c.Host, allowedHost)
	}
	if !token(c.Method, maxMethod) || c.Method == "CONNECT" {
		f.add(path+".method", c.Method, allowedMethod)
	}
	f.headers(path+".headers", c.Headers)
	if s, i, allowed := NewStatusSet(c.Status.List()); allowed != "" {
		f.add(path+".status", c.Status.List()[i], allowed)
	} else if c.Status == "" || s != c.Status {
		f.add(path+".status", string(c.Status), "must be statuses in order and without overlap, "+string(s))
	}
	if c.Body != "" {
		f.body(path+".body", c)
	}
	f.choice(path+".version", c.Version, nil, HTTP1, HTTP2)
	f.tls(path, c)
}

func (f *faults) body(path string, c *Check) {
	_, err := regexp.Compile(c.Body)
	switch {
	case err != nil:
		f.add(path, c.Body, allowedBody+": "+clip(strings.TrimPrefix(err.Error(), "error parsing regexp: ")))
	case len(c.Body) > maxBody:
		f.add(path, c.Body, allowedBody)
	case c.Method == "HEAD":
		f.add(path, c.Body, "must be left out with method HEAD, whose answers have no body")
	}
}

func (f *faults) headers(path string, h Headers) {
	if len(h) > maxHeaderText || len(h.List()) > maxHeaders {
		f.add(path, fmt.Sprintf("%d headers of %d bytes", len(h.List()), len(h)), fmt.Sprintf("must be at most %d of %d bytes in all", maxHeaders, maxHeaderText))
		return
	}
	seen := map[string]bool{}
	for _, line := range h.List() {
		name, value, ok := strings.Cut(line, ": ")
		at := join(path, clip(name))
		switch lower := strings.ToLower(name); {
		case !ok:
			f.add(path, line, "must be NAME: VALUE")
		case seen[lower]:
			f.add(at, value, "must not be given twice, whatever its case")
		default:
			f.check(at, value, wrongHeader(name, value))
			seen[lower] = true
		}
	}
}

func (f *faults) tls(path string, c *Check) {
	if c.ServerName != "" && !hostForm.MatchString(c.ServerName) {
		f.add(path+".serverName", c.ServerName, allowedServerName)
	}
	if c.CA == "" {
		return
	}
	if !c.Verify {
		f.add(path+".ca", "", "must be left out with verify false, which looks at no certificate")
	}
	f.check(path+".ca", "", wrongCA(c.CA))
}

// wrongCA returns the fault of certificates in PEM.
func wrongCA(s string) string {
	if len(s) > maxCA {
		return allowedCA
	}
	rest := []byte(s)
	for n := 1; ; n++ {
		var block *pem.Block
		before := rest
		if block, rest = pem.Decode(rest); block == nil {
			return allowedCA
		}
		if block.Type != "CERTIFICATE" || !strings.HasPrefix(strings.TrimSpace(string(before)), "-----BEGIN CERTIFICATE-----") {
			return allowedCA
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Sprintf("%s: certificate %d: %s", allowedCA, n, clip(err.Error()))
		}
		if strings.TrimSpace(string(rest)) == "" {
			return ""
		}
	}
}

// payloads checks the data to send and to expect, as text and as digits.
func (f *faults) payloads(kind string, c *Check) {
	f.payload(kind+".send", c.Send)
	f.payload(kind+".expect", c.Expect)
	f.payloadHex(kind+".sendHex", c.SendHex, kind+".send", c.Send)
	f.payloadHex(kind+".expectHex", c.ExpectHex, kind+".expect", c.Expect)
}

// payloadHex checks digits and that the equivalent text is not set, too.
func (f *faults) payloadHex(path, s, textPath, text string) {
	at := strings.IndexFunc(s, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
	switch {
	case s == "":
	case text != "":
		f.add(path, s, "must be left out beside "+textPath)
	case at >= 0:
		f.add(path, s, fmt.Sprintf("%s: character %d is no digit", allowedHex, at+1))
	case len(s)%2 != 0:
		f.add(path, s, fmt.Sprintf("%s: %d digits are an odd number", allowedHex, len(s)))
	case len(s) > 2*maxPayload:
		f.add(path, s, allowedHex)
	}
}

func (f *faults) payload(path, s string) {
	if len(s) > maxPayload || !utf8.ValidString(s) {
		f.add(path, s, allowedPayload)
	}
}

func (f *faults) dns(path string, c *Check) {
	switch {
	case c.Name == "":
		f.add(path+".name", "", "is missing, "+allowedDNSName)
	case len(c.Name) > 253 || !nameForm.MatchString(c.Name):
		f.add(path+".name", c.Name, allowedDNSName)
	}
	f.choice(path+".type", c.Type, nil, DNSTypes...)
	if c.Answer == "" {
		return
	}
	a, wrong := ParseAddr(c.Answer)
	switch {
	case c.Type == "A" && (wrong != "" || !a.Is4()):
		f.add(path+".answer", c.Answer, "must be an IPv4 address with type A")
	case c.Type == "AAAA" && (wrong != "" || !a.Is6()):
		f.add(path+".answer", c.Answer, "must be an IPv6 address with type AAAA")
	case len(c.Answer) > maxAnswer || !utf8.ValidString(c.Answer) || strings.ContainsFunc(c.Answer, func(r rune) bool { return !unicode.IsPrint(r) }):
		f.add(path+".answer", c.Answer, allowedAnswer)
	}
}

// external checks the program to run. Nodes run only programs in the directory that their operator
// configured, which is not available here.
func (f *faults) external(at string, c *Check) {
	switch {
	case c.Program == "":
		f.add(at+".program", "", "is missing, "+allowedProgram)
	case !rooted(c.Program, maxProgram) || c.Program == "/" || path.Clean(c.Program) != c.Program:
		f.add(at+".program", c.Program, allowedProgram)
	}
	list := c.Arguments.List()
	if len(list) > maxArguments {
		f.add(at+".arguments", fmt.Sprintf("%d arguments", len(list)), fmt.Sprintf("must be at most %d", maxArguments))
		return
	}
	for i, a := range list {
		f.check(fmt.Sprintf("%s.arguments[%d]", at, i), a, wrongArgument(a))
	}
	if c.Arguments != "" && !strings.HasSuffix(string(c.Arguments), "\x00") {
		f.add(at+".arguments", string(c.Arguments), "must each end with NUL")
	}
}

// wrongArgument returns the fault of an argument of a program.
func wrongArgument(s string) string {
	if len(s) > maxArgument || strings.ContainsRune(s, 0) || !utf8.ValidString(s) {
		return fmt.Sprintf("must be at most %d bytes of UTF-8 without NUL", maxArgument)
	}
	return ""
}

// visible reports whether s is printable ASCII without spaces, of at most max bytes.
func visible(s string, max int) bool {
	return len(s) <= max && !slices.ContainsFunc([]byte(s), func(b byte) bool { return b <= ' ' || b > '~' })
}
