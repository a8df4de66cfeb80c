package main

import "testing"

func TestCanDial(t *testing.T) {
	for address, want := range map[string]bool{
		"10.0.0.1:1": true, "[2001:db8::1]:8443": true, "[fe80::1%eth0]:1": true, "localhost:65535": true, "3f2a.example.org.:1": true,
		"3f2a:1": true, "shunt_manager_1:8443": true, "xn--bcher-kva.example:1": true,
		"": false, "m1": false, ":1": false, "m1:": false, "m1:0": false, "m1:65536": false, "m1:+1": false, "m1:http": false,
		"10.0.0.256:1": false, "10.0.0:1": false, "1:1": false, "2001:db8::1:1": false, "a b:1": false, "-a:1": false, ".:1": false, "a..b:1": false,
	} {
		if got := canDial(address); got != want {
			t.Errorf("%q: %v, want %v", address, got, want)
		}
	}
}
