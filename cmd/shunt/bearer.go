package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
)

// tokenVariable names the environment variable that names a file with a bearer token.
const tokenVariable = "SHUNT_TOKEN_FILE"

// credentials reads the files that the configuration names and returns the source of bearer tokens,
// or nil with a certificate. A token takes precedence: the certificate is not presented then.
func (c *clientConfig) credentials() (func(context.Context) (string, error), error) {
	if c.CAFile != "" {
		if c.CA != "" {
			return nil, fmt.Errorf("%s: ca and caFile exclude each other", c.file)
		}
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%s: caFile: %w", c.file, err)
		}
		c.CA = string(text)
	}
	if file := os.Getenv(tokenVariable); file != "" {
		c.TokenFile, c.TokenCommand = file, nil
	}
	switch {
	case c.TokenFile != "" && len(c.TokenCommand) > 0:
		return nil, fmt.Errorf("%s: tokenFile and tokenCommand exclude each other", c.file)
	case c.TokenFile != "":
		c.Cert, c.Key = "", ""
		return func(context.Context) (string, error) { return tokenOf(os.ReadFile(c.TokenFile)) }, nil
	case len(c.TokenCommand) > 0:
		c.Cert, c.Key = "", ""
		return once(func(ctx context.Context) (string, error) { return runTokenCommand(ctx, c.TokenCommand) }), nil
	}
	return nil, nil
}

// runTokenCommand runs a helper that prints a token. The helper uses the user's standard input and
// standard error.
func runTokenCommand(ctx context.Context, command []string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	token, err := tokenOf(cmd.Output())
	if err != nil {
		return "", fmt.Errorf("tokenCommand %s: %w", command[0], err)
	}
	return token, nil
}

// tokenOf returns the only word of text. Its errors do not contain it.
func tokenOf(text []byte, err error) (string, error) {
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	words := bytes.Fields(text)
	if len(words) != 1 {
		return "", errors.New("read token: must be one word, as `shunt access create` prints it; an empty file is left by a command that failed")
	}
	return string(words[0]), nil
}

// once caches the first token. Errors are not cached.
func once(get func(context.Context) (string, error)) func(context.Context) (string, error) {
	var mu sync.Mutex
	var token string
	return func(ctx context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		var err error
		if token == "" {
			token, err = get(ctx)
		}
		return token, err
	}
}

// bearerTransport adds the token to every request. get is nil if there is none.
type bearerTransport struct {
	next http.RoundTripper
	get  func(context.Context) (string, error)
}

// RoundTrip implements http.RoundTripper.
func (t bearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.get == nil {
		return t.next.RoundTrip(r)
	}
	token, err := t.get(r.Context())
	if err != nil {
		return nil, tokenError{err}
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return t.next.RoundTrip(r)
}

// tokenError means that there is no token to send.
type tokenError struct{ error }

func (e tokenError) Unwrap() error { return e.error }
