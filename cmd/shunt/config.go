package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	yaml "github.com/goccy/go-yaml"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// configVariable names the environment variable that names the client configuration.
const configVariable = "SHUNT_CONFIG"

// adminConfig is where a manager writes the configuration of its admin.
const adminConfig = "/var/lib/shunt/manager/admin.yaml"

// clientConfig holds the managers' URLs and the client's credentials. The PEM texts are inline.
type clientConfig struct {
	// Server lists the URLs of managers, https://address:port. Any of them will do.
	Server serverList `yaml:"server"`
	// CA is the certificate of the CA that signed the manager's certificate.
	CA string `yaml:"ca"`
	// Cert and Key are the client's own.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	// CAFile is a file with CA's text.
	CAFile string `yaml:"caFile"`
	// TokenFile holds a bearer token, an access token or an ID token. TokenCommand prints one. They
	// take precedence over Cert and Key.
	TokenFile    string   `yaml:"tokenFile"`
	TokenCommand []string `yaml:"tokenCommand"`

	file      string
	namespace string // network namespace to dial from; empty is the current one
}

// errNoConfig means that no client configuration was found.
var errNoConfig = errors.New("no client configuration: give --config FILE or --lab NAME, or set $" + configVariable)

// load finds and reads the client configuration.
func (g *globals) load() (*clientConfig, error) {
	if g.lab != "" {
		return g.loadLab()
	}
	for _, file := range g.candidates() {
		c, err := readConfig(file)
		if errors.Is(err, fs.ErrNotExist) && !g.named(file) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return c, c.override(g.server)
	}
	return nil, errNoConfig
}

// named reports whether the user named the file, so that it must exist.
func (g *globals) named(file string) bool {
	return file == g.config || file == os.Getenv(configVariable)
}

// candidates returns the files to try, in order. A named file is the only one.
func (g *globals) candidates() []string {
	if g.config != "" {
		return []string{g.config}
	}
	if file := os.Getenv(configVariable); file != "" {
		return []string{file}
	}
	var files []string
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "shunt", "config.yaml"))
	}
	return append(files, adminConfig)
}

func (g *globals) loadLab() (*clientConfig, error) {
	if g.config != "" {
		return nil, usagef("--lab and --config exclude each other")
	}
	l, err := lab.FindAccess(g.lab)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab %s: is not up, see shunt lab status", g.lab)
	}
	if err != nil {
		return nil, err
	}
	c, err := readConfig(l.AdminConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab %s: is not up, see shunt lab status", g.lab)
	}
	if err != nil {
		return nil, err
	}
	if !netdev.Exists(l.Namespace) {
		return nil, fmt.Errorf("lab %s: namespace %s: does not exist, see shunt lab status", g.lab, l.Namespace)
	}
	c.Server, c.namespace = l.Servers, l.Namespace
	return c, c.override(g.server)
}

// readConfig reads one file, strictly.
func readConfig(file string) (*clientConfig, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read client configuration: %w", err)
	}
	return parseConfig(file, text)
}

// parseConfig reads the text of a file, strictly.
func parseConfig(file string, text []byte) (*clientConfig, error) {
	c := clientConfig{file: file}
	switch err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&c); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("client configuration %s: is empty, must have server, ca, cert and key", file)
	case err != nil:
		return nil, fmt.Errorf("client configuration %s: %s", file, yaml.FormatError(err, false, false))
	}
	return &c, nil
}

// override replaces the file's managers by server unless that is empty.
func (c *clientConfig) override(server string) (err error) {
	if server != "" {
		if c.Server, err = parseServers(server); err != nil {
			return usageError{fmt.Errorf("--server: %w", err)}
		}
		return nil
	}
	if c.Server, err = parseServers(c.Server...); err != nil {
		return fmt.Errorf("%s: server: %w", c.file, err)
	}
	return nil
}
