package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

func TestLoadView(t *testing.T) {
	of := func(service string, member uint32, l *apiv1.MemberLoad) *apiv1.LoadStatus {
		return &apiv1.LoadStatus{Service: service, Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.1.11", DipPort: 8080, Member: member, Load: l}
	}
	status := &apiv1.StatusResponse{Load: []*apiv1.LoadStatus{
		of("web", 0, &apiv1.MemberLoad{Connections: new(uint32(12)), Cpu: new(uint32(345)), Given: new(float32(0.75)), Age: durationpb.New(123456 * time.Microsecond)}),
		of("web", 1, &apiv1.MemberLoad{Connections: new(uint32(0)), Age: durationpb.New(time.Second)}),
		of("web", 2, nil),
		of("mail", 0, nil),
	}}
	status.Load[0].Scheduler, status.Load[0].Share = "p2c", new(1/3.0)
	v := loadView(status, "web")
	want := [][]string{
		{"SERVICE", "ENDPOINT", "BACKEND", "MEMBER", "CONNECTIONS", "CPU", "LOAD", "AGE", "SCHEDULER", "SHARE"},
		{"web", "tcp/203.0.113.10:80", "10.20.1.11:8080", "0", "12", "34.5%", "0.75", "120ms", "p2c", "33.3%"},
		{"web", "tcp/203.0.113.10:80", "10.20.1.11:8080", "1", "0", "-", "-", "1s", "-", "-"},
		{"web", "tcp/203.0.113.10:80", "10.20.1.11:8080", "2", "-", "-", "-", "-", "-", "-"},
	}
	if !slices.EqualFunc(v.rows, want, slices.Equal) {
		t.Errorf("rows %q, want %q", v.rows, want)
	}
	if rows := loadView(status, "").rows; len(rows) != 5 {
		t.Errorf("rows of all services: %q", rows)
	}
	text, err := json.Marshal(v.records.([]loadRecord)[1])
	if want := `{"service":"web","vip":"203.0.113.10","protocol":"tcp","port":80,"dip":"10.20.1.11","dipPort":8080,"member":1,"connections":0,"cpu":null,"load":null,"scheduler":"","share":null,"ageSeconds":1}`; err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}

// TestLoadWatch checks that a watch prints members only if more than their age changed, and removed
// members.
func TestLoadWatch(t *testing.T) {
	status := func(members ...uint32) *apiv1.StatusResponse {
		out := &apiv1.StatusResponse{}
		for i, connections := range members {
			out.Load = append(out.Load, &apiv1.LoadStatus{
				Service: "web", Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.1.11", DipPort: uint32(8080 + i), Member: uint32(i),
				Load: &apiv1.MemberLoad{Connections: &connections, Age: durationpb.New(time.Duration(len(members)) * time.Second)},
			})
		}
		return out
	}
	var out bytes.Buffer
	p := loadPrinter{w: &out, format: formatTable, told: map[string]loadTold{}}
	for _, c := range []struct {
		status *apiv1.StatusResponse
		want   []string // events and connections
	}{
		{status(1, 2), []string{"EVENT CONNECTIONS", "upserted 1", "upserted 2"}},
		{status(1, 2), nil},
		{status(1, 3, 4), []string{"upserted 3", "upserted 4"}},
		{status(1, 3), []string{"deleted 4"}},
	} {
		out.Reset()
		if err := p.print(loadView(c.status, "web")); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			f := strings.Fields(line)
			got = append(got, f[0]+" "+f[5])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("printed %q, want %q", got, c.want)
		}
	}
}
