package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/bench/swarm"
	"github.com/shuntlb/shunt/internal/pki"
)

// nodesRig is one manager with a store on disk and a process of simulated nodes.
type nodesRig struct {
	program string
	dir     string // of the manager, on a disk
	state   string // of the nodes, in memory: each would have a disk of its own
	address string
	count   int

	manager *exec.Cmd
	log     *os.File
	ca      *pki.CA
	api     shuntv1connect.ManagerClient

	swarm   *exec.Cmd
	orders  *json.Encoder
	answers *json.Decoder
	end     io.Closer
	// interrupted cancels the kill of the nodes at the end of the context.
	interrupted func() bool
}

// nodesWithin bounds every step.
const nodesWithin = 3 * time.Minute

// SwarmCommand is the hidden command of the process of simulated nodes.
const SwarmCommand = "bench-swarm"

// withNodes starts a manager, stores objects for count nodes, runs f, and ends and removes
// everything.
func withNodes(ctx context.Context, o Options, count int, f func(context.Context, *nodesRig) error) (err error) {
	r := &nodesRig{program: o.Program, count: count}
	if r.program == "" {
		if r.program, err = os.Executable(); err != nil {
			return err
		}
	}
	if r.dir, err = os.MkdirTemp("", "shunt-bench-manager"); err != nil {
		return err
	}
	memory := "/dev/shm"
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	if r.state, err = os.MkdirTemp(memory, "shunt-bench-nodes"); err != nil {
		return errors.Join(err, os.RemoveAll(r.dir))
	}
	defer func() {
		r.stopSwarm()
		r.kill()
		err = errors.Join(err, os.RemoveAll(r.dir), os.RemoveAll(r.state))
	}()
	// An address that is never a source, so that no connection takes the port while no manager
	// listens.
	r.address = fmt.Sprintf("127.78.%d.%d:8443", os.Getpid()>>8&255, os.Getpid()&255)
	if err := r.prepare(ctx, o); err != nil {
		return r.explain(err)
	}
	if err := f(ctx, r); ctx.Err() != nil {
		return context.Cause(ctx)
	} else if err != nil {
		return r.explain(err)
	}
	return nil
}

// explain adds the last lines of the manager's log.
func (r *nodesRig) explain(err error) error {
	text, _ := os.ReadFile(filepath.Join(r.dir, "log"))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Errorf("%w; the manager's log ends with:\n%s", err, strings.Join(lines[max(0, len(lines)-5):], "\n"))
}

func (r *nodesRig) prepare(ctx context.Context, o Options) (err error) {
	if r.log, err = os.Create(filepath.Join(r.dir, "log")); err != nil {
		return err
	}
	if err := r.startManager(ctx); err != nil {
		return err
	}
	o.progressf("nodes: objects and certificates of %d nodes", r.count)
	if err := r.apply(ctx, &apiv1.Object{Kind: &apiv1.Object_Network{Network: &apiv1.Network{
		Name: "main", Vips: []string{"198.18.0.0/15"}, Underlay: []string{"10.0.0.0/8"},
	}}}); err != nil {
		return err
	}
	for first := 0; first < r.count; first += 250 {
		var objects []*apiv1.Object
		for i := first; i < min(first+250, r.count); i++ {
			objects = append(objects, &apiv1.Object{Kind: &apiv1.Object_Node{Node: &apiv1.Node{Name: swarm.Name(i), Role: "host", Address: []string{hostOf(i).String()}}}}, serviceOf(i, 8080, 1))
		}
		if err := r.apply(ctx, objects...); err != nil {
			return err
		}
	}
	now := time.Now()
	for i := range r.count {
		cert, key, err := r.ca.Client(swarm.Name(i), "host", 24*time.Hour, now)
		if err != nil {
			return err
		}
		if err := os.Mkdir(swarm.StateDir(r.state, i), 0o700); err != nil {
			return err
		}
		content := slices.Concat(key, cert, r.ca.CertPEM())
		if err := os.WriteFile(filepath.Join(swarm.StateDir(r.state, i), swarm.CredentialsFile), content, 0o600); err != nil {
			return err
		}
	}
	return r.startSwarm(ctx)
}

// hostOf returns the address of node i, dipOf that of its servers.
func hostOf(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}) }
func dipOf(i, server int) string {
	return netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(10 + server)}).String()
}
func serviceNameOf(i int) string { return fmt.Sprintf("service%05d", i) }

// serviceOf returns the service whose two servers are on node i alone. Their port identifies the
// version.
func serviceOf(i, port, endpoints int) *apiv1.Object {
	s := &apiv1.Service{Name: serviceNameOf(i), Vip: []string{netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}).String()}}
	for e := range endpoints {
		ep := &apiv1.Endpoint{Protocol: "tcp", Port: strconv.Itoa(servicePort + e)}
		for server := range 2 {
			ep.Backends = append(ep.Backends, &apiv1.Backend{Dip: []string{dipOf(i, server)}, Port: uint32(port), Host: hostOf(i).String()})
		}
		s.Endpoints = append(s.Endpoints, ep)
	}
	return &apiv1.Object{Kind: &apiv1.Object_Service{Service: s}}
}

func (r *nodesRig) apply(ctx context.Context, objects ...*apiv1.Object) error {
	_, err := r.api.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: objects}))
	return err
}

// startManager starts the manager and waits until it leads.
func (r *nodesRig) startManager(ctx context.Context) error {
	r.manager = exec.Command(r.program, "manager", "--data", filepath.Join(r.dir, "data"), "--listen", r.address, "--name", "bench")
	r.manager.Stderr = r.log
	r.manager.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.manager.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, nodesWithin)
	defer cancel()
	for {
		err := r.connect()
		if err == nil {
			_, err = r.api.Version(ctx, connect.NewRequest(&apiv1.VersionRequest{}))
		}
		if err == nil {
			return nil
		}
		if pause(ctx, pollEvery) != nil {
			return fmt.Errorf("the manager does not answer: %w", err)
		}
	}
}

// connect makes a client of the administrator when the CA exists.
func (r *nodesRig) connect() error {
	if r.api != nil {
		return nil
	}
	read := func(name string) []byte {
		content, _ := os.ReadFile(filepath.Join(r.dir, "data", "pki", name))
		return content
	}
	ca, err := pki.ParseCA(read("ca.crt"), read("ca.key"))
	if err != nil {
		return err
	}
	cert, key, err := ca.Client("bench", "admin", 24*time.Hour, time.Now())
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: pki.ServerName, Certificates: []tls.Certificate{pair}}}
	r.ca, r.api = ca, shuntv1connect.NewManagerClient(&http.Client{Transport: transport}, "https://"+r.address)
	return nil
}

// kill kills the manager.
func (r *nodesRig) kill() {
	if r.manager != nil && r.manager.Process != nil {
		r.manager.Process.Kill()
		r.manager.Wait()
	}
	r.manager = nil
}

func (r *nodesRig) epoch(ctx context.Context) (int64, error) {
	res, err := r.api.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{Node: swarm.Name(0)}))
	if err != nil {
		return 0, err
	}
	return res.Msg.GetEpoch(), nil
}

func (r *nodesRig) startSwarm(ctx context.Context) error {
	r.swarm = exec.Command(r.program, SwarmCommand)
	r.swarm.Stderr = r.log
	r.swarm.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := r.swarm.StdinPipe()
	if err != nil {
		return err
	}
	out, err := r.swarm.StdoutPipe()
	if err != nil {
		return err
	}
	r.orders, r.answers, r.end = json.NewEncoder(in), json.NewDecoder(out), in
	if err := r.swarm.Start(); err != nil {
		return err
	}
	// Wake a caller that waits for a response.
	r.interrupted = context.AfterFunc(ctx, func() { r.swarm.Process.Kill() })
	return nil
}

func (r *nodesRig) stopSwarm() {
	if r.swarm == nil || r.swarm.Process == nil {
		return
	}
	r.interrupted()
	r.end.Close()
	r.swarm.Process.Kill() // a clean exit of its nodes would take long
	r.swarm.Wait()
}

// order sends an order to the nodes and waits for the response.
func (r *nodesRig) order(o swarm.Order) (swarm.Answer, error) {
	if o.Within == 0 {
		o.Within = nodesWithin
	}
	var a swarm.Answer
	if err := r.orders.Encode(o); err != nil {
		return a, fmt.Errorf("nodes: %w", err)
	}
	if err := r.answers.Decode(&a); err != nil {
		return a, fmt.Errorf("nodes: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}
