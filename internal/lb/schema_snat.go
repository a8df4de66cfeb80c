package lb

import "github.com/goccy/go-yaml/ast"

// snat reads the servers whose connections leave with the VIP: addresses, or mappings with address
// and host.
func (d *decoder) snat(s *Service) func(string, ast.Node) {
	return func(p string, n ast.Node) {
		d.listOrOne(p, n, func(p string, n ast.Node) { s.SNAT = append(s.SNAT, d.snatServer(p, n)) })
	}
}

func (d *decoder) snatServer(path string, n ast.Node) (out SNATServer) {
	if _, ok := n.(*ast.MappingNode); !ok {
		return parsed(d, path, n, ParseSNATServer)
	}
	seen := d.mapping(path, n,
		field{"dip", func(p string, n ast.Node) { out.DIP = d.addr(p, n) }},
		field{"host", func(p string, n ast.Node) { out.Host = d.addr(p, n) }},
	)
	for _, name := range []string{"dip", "host"} {
		if seen != nil && !seen[name] {
			d.add(path+"."+name, "", "is missing, must be an IP address")
		}
	}
	return out
}

// snatTimes reads the times of leased ports.
func (d *decoder) snatTimes(path string, n ast.Node, t *SNATTimes) {
	var fields []field
	for _, c := range t.fields() {
		fields = append(fields, field{c.name, func(p string, n ast.Node) { *c.time = d.span(p, n, c.allowed) }})
	}
	d.mapping(path, n, fields...)
}
