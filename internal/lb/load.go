package lb

import (
	"fmt"
	"strings"
	"time"
)

// Load configures how hosts learn the load of an endpoint's backends. A zero field is not set: see
// OrDefault.
type Load struct {
	// HTTP is the page with a backend's load; without it the application reports it over the socket
	// of its host.
	HTTP LoadHTTP
	// Interval is the time between two requests, Timeout the limit of one; both only with HTTP.
	Interval, Timeout time.Duration
	// Stale is how long a report is valid.
	Stale time.Duration
}

// LoadHTTP is an HTTP page with a backend's load; without a path there is none.
type LoadHTTP struct {
	Path string
	// Host is the Host header; empty: the backend's address and port.
	Host string
	// Port is the destination port; 0: the backend's.
	Port uint16
}

// Asked reports whether hosts request the load from backends.
func (l Load) Asked() bool { return l.HTTP.Path != "" }

// Bounds and defaults of Load.
const (
	DefaultLoadPath     = "/load"
	DefaultLoadInterval = 100 * time.Millisecond
	DefaultLoadTimeout  = time.Second
	DefaultLoadStale    = 5 * time.Second
	MinLoadInterval     = 100 * time.Millisecond
	MaxLoadInterval     = time.Minute
	MinLoadTimeout      = 10 * time.Millisecond
	MaxLoadTimeout      = 10 * time.Second
	MinLoadStale        = time.Second
	MaxLoadStale        = 10 * time.Minute

	allowedLoadInterval = "must be 100ms to 1m"
	allowedLoadTimeout  = "must be 10ms to 10s"
	allowedLoadStale    = "must be 1s to 10m"
	onlyAsked           = "must be left out without http: nobody is asked"
)

// OrDefault returns the load with defaults for times that are not set.
func (l Load) OrDefault() Load {
	setDefault(&l.Interval, DefaultLoadInterval)
	setDefault(&l.Timeout, DefaultLoadTimeout)
	setDefault(&l.Stale, max(DefaultLoadStale, 2*l.Interval))
	return l
}

// String returns the fields that are set, as in "http /load, interval 1s"; empty: none.
func (l Load) String() string {
	var out []string
	if l.Asked() {
		at := "http " + l.HTTP.Path
		if l.HTTP.Port != 0 {
			at += fmt.Sprintf(" at port %d", l.HTTP.Port)
		}
		out = append(out, at)
	}
	for _, t := range l.times() {
		if *t.time != 0 {
			out = append(out, t.name+" "+durationText(*t.time))
		}
	}
	return strings.Join(out, ", ")
}

// loadTime is a time of Load and its name in the API.
type loadTime struct {
	name      string
	time      *time.Duration
	min, max  time.Duration
	allowed   string
	onlyAsked bool
}

func (l *Load) times() [3]loadTime {
	return [...]loadTime{
		{"interval", &l.Interval, MinLoadInterval, MaxLoadInterval, allowedLoadInterval, true},
		{"timeout", &l.Timeout, MinLoadTimeout, MaxLoadTimeout, allowedLoadTimeout, true},
		{"stale", &l.Stale, MinLoadStale, MaxLoadStale, allowedLoadStale, false},
	}
}

// load checks the load configuration of an endpoint.
func (f *faults) load(path string, e *Endpoint) {
	l := e.Load
	for _, t := range l.times() {
		switch at := path + "." + t.name; {
		case *t.time == 0:
		case t.onlyAsked && !l.Asked():
			f.add(at, durationText(*t.time), onlyAsked)
		case *t.time < t.min || *t.time > t.max:
			f.add(at, durationText(*t.time), t.allowed)
		}
	}
	if !l.Asked() {
		return
	}
	if all := l.OrDefault(); l.Stale != 0 && all.Stale <= all.Interval && !f.hasUnder(path) {
		f.add(path+".stale", durationText(l.Stale), "must be longer than interval, "+durationText(all.Interval))
	}
	at := path + ".http"
	if !rooted(l.HTTP.Path, maxPath) {
		f.add(at+".path", l.HTTP.Path, allowedPath)
	}
	if l.HTTP.Host != "" && !hostForm.MatchString(l.HTTP.Host) {
		f.add(at+".host", l.HTTP.Host, allowedHost)
	}
	if l.HTTP.Port == 0 && (e.PortEnd != 0 || e.Protocol != TCP) {
		f.add(at+".port", "", "is missing, "+allowedPort+": the backends have no TCP port of their own")
	}
}
