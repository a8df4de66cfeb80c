package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
)

// writable refuses a client configuration that cannot be replaced.
func (r *caRotation) writable() error {
	c, err := r.g.load()
	if err != nil {
		return err
	}
	for _, file := range []string{c.file, cmp.Or(c.CAFile, c.file)} {
		// The certificate goes into the first, the CA into the second.
		file, err := filepath.EvalSymlinks(file)
		if err != nil {
			return fmt.Errorf("client configuration: %w", err)
		}
		probe, err := os.CreateTemp(filepath.Dir(file), ".shunt-*")
		if err != nil {
			return fmt.Errorf("client configuration %s: must be a file that can be replaced, since it gets the new CA: %w", file, err)
		}
		probe.Close()
		if err := os.Remove(probe.Name()); err != nil {
			return err
		}
	}
	_, err = editedConfig(c.file, map[string][]byte{"ca": []byte("x\n"), "cert": []byte("x\n"), "key": []byte("x\n")})
	return err
}

// storeCA puts the CAs into the client configuration, unless it has them.
func (r *caRotation) storeCA(cas []byte) error {
	c, err := r.g.load()
	if err != nil {
		return err
	}
	want, err := pki.ParseCerts(cas)
	if err != nil {
		return fmt.Errorf("answer: ca: %w", err)
	}
	text := []byte(c.CA)
	if c.CAFile != "" {
		if text, err = os.ReadFile(c.CAFile); err != nil {
			return fmt.Errorf("%s: caFile: %w", c.file, err)
		}
	}
	if has, err := pki.ParseCerts(text); err == nil && pki.Same(has, want) {
		return nil
	}
	if c.CAFile != "" {
		return replaceFile(c.CAFile, cas)
	}
	return replaceInConfig(c.file, map[string][]byte{"ca": cas})
}

// renew gets a certificate of the new CA for the client configuration. A configuration with a
// bearer token needs none.
func (r *caRotation) renew(ctx context.Context, res *apiv1.RotateCAResponse) error {
	c, err := r.g.load()
	if err != nil {
		return err
	}
	if _, err := c.credentials(); err != nil {
		return err
	}
	cas, err := pki.ParseCerts(res.GetCa())
	if err != nil {
		return fmt.Errorf("answer: ca: %w", err)
	}
	cert, err := pki.ParseCert([]byte(c.Cert))
	if c.Cert == "" || err == nil && pki.SignedBy(cert, cas[0]) {
		r.newCertificate = true
		return nil
	}
	key, err := pki.NewKey()
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "shunt"}}, key)
	if err != nil {
		return err
	}
	answer, err := r.ask(ctx, &apiv1.RotateCARequest{Csr: csr})
	if err != nil || len(answer.GetCertificate()) == 0 {
		return nil // requested again at the next poll
	}
	keyPEM, err := pki.KeyPEM(key)
	if err != nil {
		return err
	}
	if err := replaceInConfig(c.file, map[string][]byte{"cert": answer.GetCertificate(), "key": keyPEM}); err != nil {
		return err
	}
	r.newCertificate = true
	return nil
}

// replaceInConfig replaces PEM texts of a client configuration and keeps the rest.
func replaceInConfig(file string, texts map[string][]byte) error {
	content, err := editedConfig(file, texts)
	if err != nil {
		return err
	}
	return replaceFile(file, content)
}

// editedConfig returns a client configuration with other PEM texts. It refuses a file that it
// cannot edit: its fields must begin lines.
func editedConfig(file string, texts map[string][]byte) ([]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("client configuration: %w", err)
	}
	var out bytes.Buffer
	skip := false
	for line := range strings.Lines(string(content)) {
		if inside := line == "\n" || strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t"); !inside {
			field, _, _ := strings.Cut(line, ":")
			_, skip = texts[strings.Trim(field, `"'`)]
		}
		if !skip {
			out.WriteString(line)
		}
	}
	if b := out.Bytes(); len(b) > 0 && b[len(b)-1] != '\n' {
		out.WriteByte('\n')
	}
	for _, field := range []string{"ca", "cert", "key"} {
		text, ok := texts[field]
		if !ok {
			continue
		}
		fmt.Fprintf(&out, "%s: |\n", field)
		for line := range strings.Lines(string(text)) {
			out.WriteString("  " + line)
		}
	}
	c, err := parseConfig(file, out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("client configuration %s: each of its fields must begin a line, to get the new CA: %w", file, err)
	}
	for field, got := range map[string]string{"ca": c.CA, "cert": c.Cert, "key": c.Key} {
		if want, given := texts[field]; given && got != string(want) {
			return nil, fmt.Errorf("client configuration %s: %s must begin a line, to be replaced", file, field)
		}
	}
	return out.Bytes(), nil
}

// replaceFile replaces a file atomically and keeps its mode. It follows a symbolic link.
func replaceFile(file string, content []byte) error {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	next, err := os.CreateTemp(filepath.Dir(file), ".shunt-*")
	if err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	defer os.Remove(next.Name())
	_, err = next.Write(content)
	err = errors.Join(err, next.Chmod(info.Mode().Perm()), next.Sync(), next.Close())
	if err == nil {
		err = os.Rename(next.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("client configuration %s: %w", file, err)
	}
	return nil
}
