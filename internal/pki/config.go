package pki

import (
	"fmt"
	"strings"
)

// ClientConfig writes a client configuration: how to reach managers, the CA's certificate, and the client's certificate and
// key, PEM. Whoever reads it may do what the certificate's owner may.
func ClientConfig(comment string, servers []string, ca, cert, key []byte) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", comment)
	if len(servers) == 1 {
		fmt.Fprintf(&b, "server: %s\n", servers[0])
	} else {
		fmt.Fprintf(&b, "server:\n- %s\n", strings.Join(servers, "\n- "))
	}
	for _, part := range []struct {
		name string
		pem  []byte
	}{{"ca", ca}, {"cert", cert}, {"key", key}} {
		fmt.Fprintf(&b, "%s: |\n", part.name)
		for line := range strings.Lines(string(part.pem)) {
			b.WriteString("  " + line)
		}
	}
	return []byte(b.String())
}
