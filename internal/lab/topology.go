// Package lab builds a complete Shunt network in namespaces of one machine: clients, a real router,
// muxes, hosts with virtual machines and managers, and runs everything in them. Names and addresses
// are fixed, so that scripts can use them.
package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/shuntlb/shunt/internal/lb"
)

// Topology describes the parts of a lab.
type Topology struct {
	// Name is the prefix of every namespace: NAME-client1.
	Name     string  `yaml:"name" json:"name"`
	Clients  int     `yaml:"clients" json:"clients"`
	Routers  Routers `yaml:"routers" json:"routers"`
	Muxes    int     `yaml:"muxes" json:"muxes"`
	Hosts    Hosts   `yaml:"hosts" json:"hosts"`
	Managers int     `yaml:"managers" json:"managers"`
	// MTU of every link, IP header included.
	MTU int `yaml:"mtu" json:"mtu"`
}

// Routers are the routers between all nodes.
type Routers struct {
	Count  int    `yaml:"count" json:"count"`
	Daemon Daemon `yaml:"daemon" json:"daemon"`
}

// Hosts are the server machines, with VMs virtual machines on each.
type Hosts struct {
	Count int `yaml:"count" json:"count"`
	VMs   int `yaml:"vms" json:"vms"`
}

// Daemon is the routing software of the routers.
type Daemon string

// The routing daemons.
const (
	FRR  Daemon = "frr"
	BIRD Daemon = "bird"
)

// Limits of a topology. MaxMuxes is the router's maximum-paths. The others keep 10+i below the
// router's addresses .254 and ::254 in every subnet.
const (
	MaxClients = 200
	MaxMuxes   = 16
	MaxHosts   = 200
	MaxVMs     = 200
	MinMTU     = 1280 // RFC 8200 section 5
	MaxMTU     = 9000 // jumbo frames, which the programs receive in several memory fragments
)

var nameForm = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$`)

// CheckName refuses an invalid name of a lab.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("name: %q: must be %s", name, allowedName)
	}
	return nil
}

const allowedName = "1 to 24 letters a to z, digits and hyphens, beginning with a letter, not ending with a hyphen"

// DefaultTopology is the topology that `shunt lab up` builds without a file.
func DefaultTopology() Topology {
	return Topology{
		Name:     "demo",
		Clients:  1,
		Routers:  Routers{Count: 1, Daemon: FRR},
		Muxes:    2,
		Hosts:    Hosts{Count: 3, VMs: 1},
		Managers: 1,
		MTU:      1500,
	}
}

// ParseTopology reads strict YAML. Absent fields have their defaults. The error is an *lb.Error
// with every fault and its position.
func ParseTopology(r io.Reader, filename string) (Topology, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return Topology{}, fmt.Errorf("read %s: %w", filename, err)
	}
	t, decoder := DefaultTopology(), yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	err = decoder.Decode(&t)
	if err != nil && !errors.Is(err, io.EOF) {
		return Topology{}, &lb.Error{Filename: filename, Violations: []lb.Violation{yamlViolation(err)}}
	}
	if t == (Topology{}) { // an empty document
		t = DefaultTopology()
	}
	if err == nil && !errors.Is(decoder.Decode(new(Topology)), io.EOF) {
		return Topology{}, &lb.Error{Filename: filename, Violations: []lb.Violation{{Field: "topology", Allowed: "must be one document"}}}
	}
	faults := t.violations()
	if len(faults) == 0 {
		return t, nil
	}
	for i := range faults {
		faults[i].Line, faults[i].Column = position(text, faults[i].Field)
	}
	return Topology{}, &lb.Error{Filename: filename, Violations: faults}
}

// Validate refuses a topology that cannot be built.
func (t Topology) Validate() error {
	if faults := t.violations(); len(faults) > 0 {
		return &lb.Error{Violations: faults}
	}
	return nil
}

func (t Topology) violations() []lb.Violation {
	var faults []lb.Violation
	refuse := func(field, value, allowed string) {
		faults = append(faults, lb.Violation{Field: field, Value: value, Allowed: allowed})
	}
	number := func(field string, value, low, high int) {
		if value < low || value > high {
			refuse(field, strconv.Itoa(value), fmt.Sprintf("must be %d to %d", low, high))
		}
	}
	only := func(field string, value, allowed int) {
		if value != allowed {
			refuse(field, strconv.Itoa(value), fmt.Sprintf("%s; must be %d", lb.NotSupported, allowed))
		}
	}
	if !nameForm.MatchString(t.Name) {
		refuse("name", strconv.Quote(t.Name), "must be "+allowedName)
	}
	number("clients", t.Clients, 1, MaxClients)
	only("routers.count", t.Routers.Count, 1)
	if t.Routers.Daemon != FRR && t.Routers.Daemon != BIRD {
		refuse("routers.daemon", strconv.Quote(string(t.Routers.Daemon)), "must be frr or bird")
	}
	number("muxes", t.Muxes, 1, MaxMuxes)
	number("hosts.count", t.Hosts.Count, 1, MaxHosts)
	number("hosts.vms", t.Hosts.VMs, 1, MaxVMs)
	if t.Managers != 1 && t.Managers != 3 && t.Managers != 5 {
		refuse("managers", strconv.Itoa(t.Managers), "must be 1, 3 or 5")
	}
	number("mtu", t.MTU, MinMTU, MaxMTU)
	return faults
}

// yamlViolation converts a parser's error to one line with its position.
func yamlViolation(err error) lb.Violation {
	v := lb.Violation{Allowed: err.Error()}
	var fault yaml.Error
	if !errors.As(err, &fault) {
		return v
	}
	v.Allowed = strings.TrimSpace(fault.GetMessage())
	if tok := fault.GetToken(); tok != nil && tok.Position != nil {
		v.Line, v.Column = tok.Position.Line, tok.Position.Column
	}
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) && fault.GetToken() != nil {
		v.Field = fault.GetToken().Value
		v.Allowed = "unknown field; a topology has name, clients, routers {count, daemon}, muxes, hosts {count, vms}, managers, mtu"
	}
	return v
}

// position returns the position of the value of a dotted field, or zeros if the field is absent.
func position(text []byte, field string) (line, column int) {
	path, err := yaml.PathString("$." + field)
	if err != nil {
		return 0, 0
	}
	node, err := path.ReadNode(bytes.NewReader(text))
	if err != nil || node.GetToken() == nil || node.GetToken().Position == nil {
		return 0, 0
	}
	return node.GetToken().Position.Line, node.GetToken().Position.Column
}
