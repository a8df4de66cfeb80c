// Package rules tests the rules for the code of the whole repository.
package rules

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/shuntlb/shunt/"

// goPackage is the output of `go list -json` for a package.
type goPackage struct {
	ImportPath string
	Imports    []string
}

// packages lists every package of the module, without test files.
func packages(t *testing.T) []goPackage {
	t.Helper()
	command := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var p goPackage
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("go list found %d packages: the rules would check nothing", len(all))
	}
	return all
}

// within reports whether path is dir or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// TestOnlyImporter restricts the imports of each external library to one package, so that it can be
// replaced and faked.
func TestOnlyImporter(t *testing.T) {
	rules := []struct {
		library, reason string
		rooms           []string
	}{
		{"github.com/cilium/ebpf", "maps, pins and programs have one owner; agents work with interfaces and their fakes", []string{"internal/dataplane"}},
		{"github.com/osrg/gobgp", "the speaker can be replaced; agents know internal/bgp only", []string{"internal/bgp/gobgp"}},
		{"go.etcd.io/etcd", "the store has a memory twin; nobody else may depend on etcd's types", []string{"internal/store/etcd"}},
		{"go.etcd.io/bbolt", "the store has a memory twin; nobody else may depend on etcd's files", []string{"internal/store/etcd"}},
		{"github.com/vishvananda/netlink", "netlink needs the right namespace and thread; one package knows how", []string{"internal/netdev"}},
		{"github.com/charmbracelet", "a screen is drawn from a model that tests drive without a terminal", []string{"internal/top"}},
		{"github.com/gopacket", "the walk and its model parse by themselves; what writes captures needs a file format only", []string{"internal/capture"}},
		{"github.com/coreos/go-oidc", "what a provider's token proves is decided in one place, of which the API knows an identity only", []string{"internal/oidc"}},
		{"github.com/go-jose", "signatures of strangers are judged in one place", []string{"internal/oidc"}},
		{"github.com/prometheus", "the parts know nothing of who looks at them; names, labels and bounds of all metrics stand in one place", []string{"internal/metrics"}},
		{"github.com/coreos/go-systemd", "daemons say how they are in one place, and run without a service manager too", []string{"internal/service"}},
		{"filippo.io/age", "what a backup is encrypted with can be replaced; nobody else handles passphrases", []string{"internal/backup"}},
		{"github.com/fsnotify", "what follows a file must also see replaced directories and lost events", []string{"internal/single"}},
		{"github.com/quic-go", "QUIC is for servers and clients of labs; what balances it reads packets, and pkg/quiclb fits any library", []string{"internal/lab"}},
		{"github.com/vishvananda/netns", "netlink needs the right namespace and thread; one package knows how", []string{"internal/netdev"}},
	}
	for _, p := range packages(t) {
		for _, rule := range rules {
			for _, imported := range p.Imports {
				if !within(imported, rule.library) {
					continue
				}
				allowed := slices.ContainsFunc(rule.rooms, func(room string) bool { return within(p.ImportPath, module+room) })
				if !allowed {
					t.Errorf("%s imports %s, allowed only in %v: %s", p.ImportPath, imported, rule.rooms, rule.reason)
				}
			}
		}
	}
}

// TestPurePackages keeps decisions free of clocks, sockets, global randomness and logs, so that
// simulation and property tests can drive them.
func TestPurePackages(t *testing.T) {
	pure := []string{"internal/lb", "internal/ring", "internal/plan", "internal/wire", "internal/health", "internal/cookie", "internal/cid", "internal/snat", "internal/load", "internal/place", "internal/fields", "internal/sim", "internal/sched", "internal/fit"}
	forbidden := []string{"net", "net/http", "os", "os/exec", "log", "log/slog", "math/rand", "crypto/rand", "sync", "context", "syscall", "golang.org/x/sys/unix"}
	for _, p := range packages(t) {
		if !slices.ContainsFunc(pure, func(room string) bool { return within(p.ImportPath, module+room) }) {
			continue
		}
		for _, imported := range p.Imports {
			if slices.Contains(forbidden, imported) {
				t.Errorf("%s imports %s: a pure package has no clock, socket, goroutine, global randomness or log", p.ImportPath, imported)
			}
			if strings.HasPrefix(imported, module) && !slices.ContainsFunc(pure, func(room string) bool { return within(imported, module+room) }) {
				t.Errorf("%s imports %s: pure packages import pure packages only", p.ImportPath, imported)
			}
		}
	}
}

// TestPublicPackages checks that public packages depend only on the standard library, so that they
// fit any build.
func TestPublicPackages(t *testing.T) {
	found := false
	for _, p := range packages(t) {
		if !within(p.ImportPath, module+"pkg") {
			continue
		}
		found = true
		for _, imported := range p.Imports {
			if first, _, _ := strings.Cut(imported, "/"); strings.Contains(first, ".") {
				t.Errorf("%s imports %s: public packages need the standard library only", p.ImportPath, imported)
			}
		}
	}
	if !found {
		t.Error("there is no public package")
	}
}

// TestBackupIsAFormat checks that the parser of backups, a file that everything depends on, can be
// fuzzed: it uses neither files, sockets and clocks nor the meaning of keys.
func TestBackupIsAFormat(t *testing.T) {
	for _, p := range packages(t) {
		if !within(p.ImportPath, module+"internal/backup") {
			continue
		}
		for _, imported := range p.Imports {
			if slices.Contains([]string{"net", "net/http", "os", "os/exec", "log", "log/slog", "sync", "context", "syscall"}, imported) || strings.HasPrefix(imported, module) {
				t.Errorf("%s imports %s: an archive is bytes in and bytes out", p.ImportPath, imported)
			}
		}
	}
}

// TestMetricsAskNobody checks that no part imports internal/metrics: a scrape reads the parts'
// reports, and a part with access to its metrics would accumulate calls for them.
func TestMetricsAskNobody(t *testing.T) {
	for _, p := range packages(t) {
		if within(p.ImportPath, module+"cmd") {
			continue
		}
		if slices.Contains(p.Imports, module+"internal/metrics") {
			t.Errorf("%s imports internal/metrics: only commands put metrics on the parts", p.ImportPath)
		}
	}
}

// TestLayers keeps imports pointing down: cmd, then managers, agents and lab, then shared loops and
// interfaces, then pure packages. Agents never import each other. They share only api/v1.
func TestLayers(t *testing.T) {
	top := []string{"internal/manager", "internal/mux", "internal/host", "internal/swagent", "internal/sim", "internal/lab", "internal/bench"}
	// The lab and the benchmarks run the others, and are therefore the two exceptions.
	runsOthers := []string{"internal/lab", "internal/bench"}
	roomOf := func(path string) string {
		for _, room := range top {
			if within(path, module+room) {
				return room
			}
		}
		return ""
	}
	for _, p := range packages(t) {
		if strings.HasPrefix(p.ImportPath, module+"cmd/") || strings.HasPrefix(p.ImportPath, module+"test/") {
			continue
		}
		mine := roomOf(p.ImportPath)
		for _, imported := range p.Imports {
			if within(imported, module+"cmd") {
				t.Errorf("%s imports %s: nothing imports commands", p.ImportPath, imported)
			}
			other := roomOf(imported)
			if other == "" || other == mine || slices.Contains(runsOthers, mine) {
				continue
			}
			if mine == "" {
				t.Errorf("%s imports %s: lower layers do not know who uses them", p.ImportPath, imported)
			} else {
				t.Errorf("%s imports %s: agents and the manager meet only in api/v1", p.ImportPath, imported)
			}
		}
	}
}
