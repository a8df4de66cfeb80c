package pki

import (
	"fmt"
	"strings"
)

// ClientConfig returns a client configuration: the addresses of managers, the CA's certificate, and
// the client's certificate and key, PEM. Any reader of it has the permissions of the certificate's
// owner.
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
