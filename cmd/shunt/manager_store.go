package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/store/etcd"
	"github.com/shuntlb/shunt/internal/token"
)

// storeFlags select where a manager's state is: in an etcd member of its own, or in an external
// etcd.
type storeFlags struct {
	peer            string
	join, tokenFile string
	forceNew        bool
	outside         etcd.Outside
}

func (f *storeFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.peer, "peer", "", "`address:port` where the other managers reach this one's part of the store; without one it is alone")
	fl.StringVar(&f.join, "join", "", "`host:port` of the API of a manager that is up, to become one of its cluster at the first start; later ones do not look at it")
	fl.StringVar(&f.tokenFile, "token-file", "", "`file` with the token for --join (shunt token create --role manager)")
	fl.BoolVar(&f.forceNew, "force-new-cluster", false, "once, when most managers are lost for good: forget the others and go on alone with what this one has")
	f.registerOutside(fl)
}

// registerOutside adds the flags of an external etcd.
func (f *storeFlags) registerOutside(fl *pflag.FlagSet) {
	fl.StringSliceVar(&f.outside.Endpoints, "etcd-endpoints", nil, "`URLs` of an etcd to keep the state in, instead of an own one")
	fl.StringVar(&f.outside.CA, "etcd-ca", "", "`file` with the CA of that etcd (default: the system's)")
	fl.StringVar(&f.outside.Cert, "etcd-cert", "", "`file` with a client certificate for it")
	fl.StringVar(&f.outside.Key, "etcd-key", "", "`file` with the key of --etcd-cert")
	fl.StringVar(&f.outside.Login, "etcd-login-file", "", "`file` with a user name and a password for it, a line each")
	fl.StringVar(&f.outside.Prefix, "etcd-prefix", "", "what stands before every key in it, such as /site1; everything else there is left alone")
}

// memberName matches the allowed names of managers that share a store. The name is in their
// certificates.
var memberName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (f *storeFlags) check(name string) error {
	if err := f.checkOutside(); err != nil {
		return err
	}
	if err := f.checkJoin(); err != nil {
		return err
	}
	if f.peer == "" {
		if f.forceNew && len(f.outside.Endpoints) > 0 {
			return usagef("--force-new-cluster: an etcd of its own is needed, not --etcd-endpoints")
		}
		return nil
	}
	if addr, err := netip.ParseAddrPort(f.peer); err != nil || addr.Port() == 0 || addr.Addr().IsUnspecified() || addr.Addr().Zone() != "" {
		return usagef("--peer: %q: must be ADDRESS:PORT, the address one of this machine", f.peer)
	}
	if len(f.outside.Endpoints) > 0 {
		return usagef("--peer: an etcd of its own is needed, not --etcd-endpoints")
	}
	if !memberName.MatchString(name) {
		return usagef("--name: %q: must be a DNS label with --peer: 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit", name)
	}
	return nil
}

func (f *storeFlags) checkJoin() error {
	if f.join == "" {
		if f.tokenFile != "" {
			return usagef("--token-file: --join is missing")
		}
		return nil
	}
	switch {
	case !canDial(f.join):
		return usagef("--join: %q: must be HOST:PORT, the port 1 to 65535", f.join)
	case f.tokenFile == "":
		return usagef("--join: --token-file is missing")
	case f.peer == "" && len(f.outside.Endpoints) == 0:
		return usagef("--join: --peer is missing, or --etcd-endpoints when that is where the others keep their state")
	case f.forceNew:
		return usagef("--force-new-cluster: excludes --join")
	}
	return nil
}

func (f *storeFlags) checkOutside() error {
	o := f.outside
	if len(o.Endpoints) == 0 {
		for _, flag := range [][2]string{
			{"--etcd-ca", o.CA}, {"--etcd-cert", o.Cert}, {"--etcd-key", o.Key}, {"--etcd-login-file", o.Login}, {"--etcd-prefix", o.Prefix},
		} {
			if flag[1] != "" {
				return usagef("%s: --etcd-endpoints is missing", flag[0])
			}
		}
		return nil
	}
	secured := false
	for _, endpoint := range o.Endpoints {
		u, err := url.Parse(endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || !canDial(u.Host) || strings.Trim(u.Path, "/") != "" || u.User != nil {
			return usagef("--etcd-endpoints: %q: must be https://HOST:PORT or http://HOST:PORT", endpoint)
		}
		secured = secured || u.Scheme == "https"
	}
	switch {
	case o.Cert != "" && o.Key == "":
		return usagef("--etcd-cert: --etcd-key is missing")
	case o.Key != "" && o.Cert == "":
		return usagef("--etcd-key: --etcd-cert is missing")
	case !secured && o.CA != "":
		return usagef("--etcd-ca: no endpoint is https")
	case !secured && o.Cert != "":
		return usagef("--etcd-cert: no endpoint is https")
	case !secured && o.Login != "":
		return usagef("--etcd-login-file: no endpoint is https: the password would be readable on the way")
	case strings.ContainsFunc(o.Prefix, func(r rune) bool { return r <= ' ' || r > '~' }) || strings.HasSuffix(o.Prefix, "/"):
		return usagef("--etcd-prefix: %q: must be printable ASCII without spaces, and not end in /", o.Prefix)
	}
	return nil
}

// advertise returns the address of the API if only the peer address has the machine's address.
func (f *storeFlags) advertise(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil || f.peer == "" {
		return ""
	}
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		return ""
	}
	peer, _, err := net.SplitHostPort(f.peer)
	if err != nil {
		return ""
	}
	return net.JoinHostPort(peer, port)
}

// openStore is a store that is ready. cluster is set if the manager runs its own members.
type openStore struct {
	store.Store
	cluster store.Cluster
}

func (f *storeFlags) open(ctx context.Context, o manager.Options, log *slog.Logger) (openStore, error) {
	cluster, err := f.joined(ctx, o)
	if err != nil {
		return openStore{}, err
	}
	if len(f.outside.Endpoints) > 0 {
		f.outside.Log = log
		s, err := etcd.OpenOutside(ctx, f.outside)
		if err != nil {
			return openStore{}, err
		}
		return openStore{s, nil}, nil
	}
	options := etcd.Options{Dir: o.Dir.Etcd(), Name: o.Name, Peer: f.peer, Cluster: cluster, ForceNew: f.forceNew, Log: log}
	if f.peer != "" {
		if err := manager.Certify(o); err != nil {
			return openStore{}, fmt.Errorf("prepare for other managers: %w", err)
		}
		options.TLS.Cert, options.TLS.Key, options.TLS.CA = o.Dir.PeerFiles()
	}
	m, err := etcd.Open(ctx, options)
	if err != nil {
		return openStore{}, err
	}
	return openStore{m, m}, nil
}

// joined makes the data directory one of the cluster unless it is already, and returns the members
// of the store.
func (f *storeFlags) joined(ctx context.Context, o manager.Options) ([]string, error) {
	if f.join == "" {
		return nil, nil
	}
	begun, err := etcd.BeginJoin(o.Dir.Etcd())
	if err != nil || !begun {
		return nil, err
	}
	text, err := os.ReadFile(f.tokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	t, err := token.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("--token-file: %s: %w", f.tokenFile, err)
	}
	j, err := manager.Join(ctx, o, t, f.join)
	switch {
	case err != nil:
		return nil, err
	case j.Outside && len(f.outside.Endpoints) == 0:
		return nil, fmt.Errorf("--join: %s keeps its state in an outside etcd: --etcd-endpoints must say where, instead of --peer", f.join)
	case !j.Outside && len(f.outside.Endpoints) > 0:
		return nil, fmt.Errorf("--join: %s keeps its state itself: --peer must be given instead of --etcd-endpoints", f.join)
	case j.Outside:
		err = etcd.EndJoin(o.Dir.Etcd())
	}
	return j.Cluster, err
}
