package main

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// loadRecord is a row of the load view: one backend of one endpoint. Unknown values are null.
type loadRecord struct {
	endpointKey
	DIP     string `json:"dip"`
	DIPPort uint32 `json:"dipPort"`
	Member  uint32 `json:"member"`
	// Connections counts established client flows.
	Connections *uint32 `json:"connections"`
	// CPU is the busy share of the CPUs of the backend's host, from 0 to 1.
	CPU *float64 `json:"cpu"`
	// Load is the value that the application reports.
	Load *float32 `json:"load"`
	// Scheduler distributes the endpoint's new connections. Share is the backend's current share of
	// them, from 0 to 1.
	Scheduler string   `json:"scheduler"`
	Share     *float64 `json:"share"`
	// Age is the time since the host's last report, in seconds.
	Age *float64 `json:"ageSeconds"`
}

// loadView has one row per member, of one service or of all services, ordered by endpoint.
func loadView(status *apiv1.StatusResponse, service string) view {
	records := []loadRecord{}
	rows := [][]string{{"SERVICE", "ENDPOINT", "BACKEND", "MEMBER", "CONNECTIONS", "CPU", "LOAD", "AGE", "SCHEDULER", "SHARE"}}
	for _, s := range status.GetLoad() {
		if service != "" && s.GetService() != service {
			continue
		}
		r := loadRecord{
			endpointKey: endpointKey{s.GetService(), s.GetVip(), s.GetProtocol(), s.GetPort(), s.GetPortEnd()},
			DIP:         s.GetDip(), DIPPort: s.GetDipPort(), Member: s.GetMember(),
		}
		if l := s.GetLoad(); l != nil {
			r.Connections, r.Load, r.Age = l.Connections, l.Given, new(l.GetAge().AsDuration().Seconds())
			if l.Cpu != nil {
				r.CPU = new(float64(l.GetCpu()) / 1000)
			}
		}
		records = append(records, r)
		row := []string{r.Service, r.endpointKey.String(), backendText(r.DIP, r.DIPPort), fmt.Sprint(r.Member)}
		share := "-"
		if r.Scheduler, r.Share = s.GetScheduler(), s.Share; r.Share != nil {
			share = fmt.Sprintf("%.1f%%", 100**r.Share)
		}
		rows = append(rows, append(append(row, loadTexts(s.GetLoad())...), cmp.Or(r.Scheduler, "-"), share))
	}
	return view{rows, records}
}

// loadTexts returns connections, CPU, the application's load and age for table output.
func loadTexts(l *apiv1.MemberLoad) []string {
	out := []string{"-", "-", "-", "-"}
	if l == nil {
		return out
	}
	if l.Connections != nil {
		out[0] = fmt.Sprint(l.GetConnections())
	}
	if l.Cpu != nil {
		out[1] = fmt.Sprintf("%.1f%%", float64(l.GetCpu())/10)
	}
	if l.Given != nil {
		out[2] = strconv.FormatFloat(float64(l.GetGiven()), 'g', 6, 32)
	}
	out[3] = l.GetAge().AsDuration().Round(10 * time.Millisecond).String()
	return out
}
