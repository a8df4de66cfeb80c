package main

import (
	"fmt"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// ownersComment lists, as comments of a YAML document, the fields that sources other than files
// own.
func ownersComment(o *apiv1.Object) string {
	var out strings.Builder
	for _, own := range o.GetOwners() {
		if own.GetSource() == defaultSource {
			continue
		}
		for _, field := range own.GetFields() {
			fmt.Fprintf(&out, "# owned by %s: %s\n", own.GetSource(), field)
		}
	}
	return out.String()
}

// owners writes the fields that sources other than files own.
func (d *description) owners() {
	rows := [][]string{{"OWNER", "FIELD"}}
	for _, own := range d.stored.GetOwners() {
		for _, field := range own.GetFields() {
			if own.GetSource() != defaultSource {
				rows = append(rows, []string{own.GetSource(), field})
			}
		}
	}
	d.section("Owners", rows)
}
