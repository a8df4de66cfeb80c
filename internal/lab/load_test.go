package lab

import (
	"encoding/json"
	"io"
	"net"
	"net/http/httptest"
	"testing"
	"time"
)

// Windows begin at marks, hold the requests started in them, and count failures by kind.
func TestLoadWindows(t *testing.T) {
	server := httptest.NewServer(webHandler("host1-vm1"))
	defer server.Close()
	marks, control := io.Pipe()
	output, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		o := LoadOptions{Targets: []string{server.Listener.Addr().String()}, Rate: 100, Timeout: 10 * time.Second, ReportEvery: 10 * time.Millisecond}
		err := Load(t.Context(), o, marks, out)
		out.Close()
		done <- err
	}()
	lines := json.NewDecoder(output)
	await := func(what string, stop func(LoadLine) bool) LoadLine {
		t.Helper()
		for {
			var line LoadLine
			if err := lines.Decode(&line); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if stop(line) {
				return line
			}
		}
	}
	mark := func(label string) {
		t.Helper()
		go io.WriteString(control, label+"\n") // Load reads it while its lines are read here
	}
	served := func(l LoadLine) bool { return l.Totals != nil && l.Totals.Servers["host1-vm1"] >= 10 }
	window := func(l LoadLine) bool { return l.Window != nil }

	await("first answers", served)
	mark("broken")
	first := await("first window", window).Window
	if first.Label != "" || first.Sent < 10 || first.Failed != 0 || first.Servers["host1-vm1"] != first.Sent {
		t.Errorf("first window is %+v", first)
	}
	server.Listener.Close()
	await("failures", func(l LoadLine) bool { return l.Totals != nil && l.Totals.Faults["refused"] >= 5 })
	control.Close()
	second := await("second window", window).Window
	if second.Label != "broken" || second.Failed < 5 || second.Sent != second.Failed+second.Servers["host1-vm1"] {
		t.Errorf("second window is %+v", second)
	}
	if second.Gap <= 0 {
		t.Errorf("second window has gap %s with %d failures", second.Gap, second.Failed)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLoadRefusesTooMuch(t *testing.T) {
	for _, o := range []LoadOptions{
		{Rate: 100, Timeout: time.Second},
		{Targets: []string{"127.0.0.1:1"}, Timeout: time.Second},
		{Targets: []string{"127.0.0.1:1"}, Rate: 1e6, Timeout: time.Second},
	} {
		if err := Load(t.Context(), o, nil, io.Discard); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

// Faults with different kernel errors have different names, and every timeout is named timeout.
func TestFaultNames(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if r := ask(listener.Addr().String(), 20*time.Millisecond); r.Fault != "timeout" {
		t.Errorf("a server that never answers: %q", r.Fault)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if r := ask(closed.Addr().String(), time.Second); r.Fault != "refused" {
		t.Errorf("nobody listens: %q", r.Fault)
	}
}
