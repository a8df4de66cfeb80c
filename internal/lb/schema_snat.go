package lb

import "github.com/goccy/go-yaml/ast"

// snat reads DIPs whose connections leave with the VIP.
func (d *decoder) snat(s *Service) func(string, ast.Node) {
	return func(p string, n ast.Node) {
		d.listOrOne(p, n, func(p string, n ast.Node) { s.SNAT = append(s.SNAT, d.addr(p, n)) })
	}
}
