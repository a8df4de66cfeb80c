package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// answersLeave checks that the default routes, which lead to clients, use only the uplink, because
// host_out is attached there, and replies that leave by another device keep the server's address.
func (e *examination) answersLeave() {
	const check = "answers"
	found := false
	for _, family := range []struct{ name, command string }{{"IPv4", "ip"}, {"IPv6", "ip -6"}} {
		client := someClient4
		if family.name == "IPv6" {
			client = someClient6
		}
		devices, err := e.m.RouteDevices(client)
		if err != nil {
			continue // no default route: clients, if any, have other routes
		}
		found = true
		others := slices.DeleteFunc(slices.Clone(devices), func(d string) bool { return d == e.o.Interface })
		slices.Sort(others)
		cure := fmt.Sprintf("%s route replace default via ROUTER dev %s, or bond the devices: shunt host --interface BOND", family.command, e.o.Interface)
		switch {
		case len(others) == 0:
			e.ok(check, "the %s default route leaves by %s", family.name, e.o.Interface)
		case len(others) == len(devices):
			e.warn(check, cure, "the %s default route leaves by %s, not by %s: answers to clients without a route of their own keep the server's address", family.name,
				strings.Join(others, ", "), e.o.Interface)
		default:
			e.fail(check, cure, "the %s default route leaves by %s as well as by %s: answers that leave there keep the server's address, and clients drop them", family.name,
				strings.Join(others, ", "), e.o.Interface)
		}
	}
	if !found {
		e.ok(check, "no default route: clients have routes of their own")
	}
}

// Commands for firewalls, for a server at DIP with its service at PORT.
const (
	notrackCure = "nft 'add table inet shunt; add chain inet shunt answers { type filter hook prerouting priority raw; }; add rule inet shunt answers ip saddr DIP tcp sport PORT notrack'" +
		" for each server, ip6 for IPv6: see docs/ops/host.md"
	acceptCure = "nft insert rule %s %s ct state untracked accept, and " + notrackCure
)

// firewall checks for rules that drop replies of servers behind a device. host_in delivers packets
// to servers past netfilter, so connection tracking sees only the replies: SYN-ACKs are invalid,
// others new.
func (e *examination) firewall() {
	const check = "firewall"
	rules, err := e.m.Firewall()
	if err != nil {
		e.warn(check, rootCure, "cannot be listed: %v", err)
		return
	}
	var drops []drop
	for _, text := range rules {
		drops = append(drops, forwardDrops(text)...)
	}
	if len(drops) == 0 {
		e.ok(check, "no rule for forwarded packets looks at the state of connections")
		return
	}
	for _, d := range drops {
		cure := notrackCure
		if !d.invalid {
			cure = fmt.Sprintf(acceptCure, d.table, d.chain)
		}
		e.warn(check, cure, "%s %s: %q drops answers of servers behind this machine, which connection tracking sees alone", d.table, d.chain, d.rule)
	}
}

// drop is a rule that drops forwarded packets.
type drop struct {
	table, chain, rule string // "inet filter", "forward", "ct state invalid drop"
	// it drops packets in connection tracking state invalid; else all packets that no earlier rule
	// accepts
	invalid bool
}

// forwardDrops returns the rules of a ruleset, in the format of nft list ruleset or iptables-save,
// that drop replies without a tracked request. Only chains that the forward hook reaches count.
func forwardDrops(ruleset string) []drop {
	if strings.Contains(ruleset, "*filter\n") {
		return savedDrops(ruleset)
	}
	var out []drop
	notrack := strings.Contains(ruleset, "notrack")
	table := ""
	chains, order := map[string][]string{}, []string(nil)
	end := func() {
		for _, chain := range reached(chains, order) {
			untracked := slices.ContainsFunc(chains[chain], func(r string) bool { return strings.Contains(r, "untracked") && strings.HasSuffix(r, "accept") })
			for _, rule := range chains[chain] {
				if d, ok := dropOf(rule); ok && (!notrack || !d.invalid && !untracked) {
					d.table, d.chain = table, chain
					out = append(out, d)
				}
			}
		}
		chains, order = map[string][]string{}, nil
	}
	chain := ""
	for line := range strings.Lines(ruleset) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "table "):
			end()
			table = strings.TrimSuffix(strings.TrimPrefix(line, "table "), " {")
		case strings.HasPrefix(line, "chain "):
			chain = strings.TrimSuffix(strings.TrimPrefix(line, "chain "), " {")
			order = append(order, chain)
		case line == "}":
			chain = ""
		case chain != "":
			chains[chain] = append(chains[chain], plainRule(line))
		}
	}
	end()
	return out
}

// plainRule returns a rule of nftables without its counter and comment.
func plainRule(line string) string {
	words := strings.Fields(line)
	var out []string
	for i := 0; i < len(words); i++ {
		switch {
		case words[i] == "comment":
			return strings.Join(out, " ")
		case words[i] == "counter" && i+4 < len(words) && words[i+1] == "packets":
			i += 4
		case words[i] == "counter":
		default:
			out = append(out, words[i])
		}
	}
	return strings.Join(out, " ")
}

// reached returns the chains of a table that the forward hook leads to, in their order.
func reached(chains map[string][]string, order []string) (out []string) {
	is := map[string]bool{}
	var walk func(string)
	walk = func(chain string) {
		if is[chain] {
			return
		}
		is[chain] = true
		for _, rule := range chains[chain] {
			words := strings.Fields(rule)
			for i := range words[:max(len(words)-1, 0)] {
				if words[i] == "jump" || words[i] == "goto" {
					walk(words[i+1])
				}
			}
		}
	}
	for _, chain := range order {
		if slices.ContainsFunc(chains[chain], func(r string) bool { return strings.HasPrefix(r, "type filter hook forward ") }) {
			walk(chain)
		}
	}
	for _, chain := range order {
		if is[chain] {
			out = append(out, chain)
		}
	}
	return out
}

// dropOf reports whether a rule drops replies.
func dropOf(rule string) (drop, bool) {
	switch {
	case strings.HasPrefix(rule, "type filter hook forward ") && strings.HasSuffix(rule, "policy drop;"):
		return drop{rule: "policy drop"}, true
	case rule == "drop" || strings.HasPrefix(rule, "reject"):
		return drop{rule: rule}, true
	case strings.Contains(rule, "ct state") && strings.Contains(rule, "invalid") && (strings.HasSuffix(rule, "drop") || strings.Contains(rule, "reject")):
		return drop{rule: rule, invalid: true}, true
	}
	return drop{}, false
}

// savedDrops is forwardDrops for the output of iptables-save: for its table filter all chains
// except INPUT and OUTPUT.
func savedDrops(saved string) (out []drop) {
	notrack := strings.Contains(saved, "NOTRACK") || strings.Contains(saved, "--notrack")
	table := ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case table != "filter" || strings.HasPrefix(line, "-A INPUT ") || strings.HasPrefix(line, "-A OUTPUT "):
		case strings.HasPrefix(line, ":FORWARD DROP"):
			if !notrack || !strings.Contains(saved, "UNTRACKED") {
				out = append(out, drop{"ip filter", "FORWARD", "policy DROP", false})
			}
		case strings.Contains(line, "INVALID") && strings.HasSuffix(line, "-j DROP") && !notrack:
			words := strings.Fields(line)
			out = append(out, drop{"ip filter", words[1], line, true})
		}
	}
	return out
}
