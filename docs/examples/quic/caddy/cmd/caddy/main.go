// Command caddy is Caddy with what the example needs; replace the modules by github.com/caddyserver/caddy/v2/modules/standard for all of Caddy's.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	_ "github.com/caddyserver/caddy/v2/modules/caddytls"

	_ "github.com/shuntlb/shunt/docs/examples/quic/caddy"
)

func main() { caddycmd.Main() }
