package main

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shuntlb/shunt/internal/oidc"
)

// oidcFlags holds the flags of the OpenID Connect provider whose ID tokens the manager accepts.
type oidcFlags struct {
	issuer, client, claim, ca string
	roles                     []string
}

func (f *oidcFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.issuer, "oidc-issuer", "", "`URL` of an OpenID Connect provider whose ID tokens let people in")
	fl.StringVar(&f.client, "oidc-client-id", "", "audience that the ID tokens must have")
	fl.StringVar(&f.claim, "oidc-role-claim", "groups", "claim that lists the groups")
	fl.StringArrayVar(&f.roles, "oidc-role", nil, "role of a group: `GROUP=admin`, GROUP=viewer or GROUP=tenant:NAME; may be repeated, the first that fits counts")
	fl.StringVar(&f.ca, "oidc-ca", "", "`file` with the CA of the provider's certificate (default: the system's)")
}

// check refuses invalid values, and flags of the provider without --oidc-issuer.
func (f *oidcFlags) check() error {
	for _, s := range f.roles {
		if _, err := oidc.ParseRole(s); err != nil {
			return usagef("--oidc-role: %w", err)
		}
	}
	if f.issuer == "" {
		for _, flag := range [][2]string{{"--oidc-client-id", f.client}, {"--oidc-ca", f.ca}, {"--oidc-role", strings.Join(f.roles, "")}} {
			if flag[1] != "" {
				return usagef("%s: --oidc-issuer is missing", flag[0])
			}
		}
		return nil
	}
	switch {
	case f.client == "":
		return usagef(`--oidc-client-id: "": must be the audience of the ID tokens`)
	case f.claim == "":
		return usagef(`--oidc-role-claim: "": must be a claim`)
	case len(f.roles) == 0:
		return usagef("--oidc-role: is missing, must be given at least once: nobody could do anything")
	}
	if err := oidc.CheckIssuer(f.issuer); err != nil {
		return usagef("--oidc-issuer: %w", err)
	}
	return nil
}

// verifier returns the verifier, or nil without an issuer. check has passed.
func (f *oidcFlags) verifier(log *slog.Logger) (*oidc.Verifier, error) {
	if f.issuer == "" {
		return nil, nil
	}
	o := oidc.Options{Issuer: f.issuer, ClientID: f.client, RoleClaim: f.claim, Log: log}
	for _, s := range f.roles {
		r, err := oidc.ParseRole(s)
		if err != nil {
			return nil, fmt.Errorf("--oidc-role: %w", err)
		}
		o.Roles = append(o.Roles, r)
	}
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca: %w", err)
		}
		o.CA = x509.NewCertPool()
		if !o.CA.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--oidc-ca: %s: must be certificates in PEM", f.ca)
		}
	}
	return oidc.New(o)
}
