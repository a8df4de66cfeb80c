package main

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
)

// testCA signs the certificates of fake managers, which have only the name that every manager has.
type testCA struct{ *pki.CA }

func newTestCA(t *testing.T) testCA {
	t.Helper()
	ca, err := pki.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return testCA{ca}
}

func (ca testCA) server(t *testing.T) *tls.Config {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Manager("m", key, nil, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2", "http/1.1"}}
}
