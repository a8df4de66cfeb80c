package etcd

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/shuntlb/shunt/internal/pki"
)

// Limits of the embedded member.
const (
	// quotaBytes is etcd's recommended maximum.
	quotaBytes = 8 << 30
	// keepRevisions is the history that auto compaction keeps, so that a watcher that fell behind
	// can catch up.
	keepRevisions = "10000"
	// aloneName and alonePeer name the member in its cluster of one; it does not listen there.
	aloneName = "shunt"
	alonePeer = "http://localhost:2380"
)

// Raft's timing, in milliseconds.
const (
	// A lone member does not wait for others: it elects itself after one election timeout.
	aloneTick, aloneElection = 10, 100
	// Members elect a leader 0.5 to 1 s after the last message of one. A lease cannot be shorter
	// than one and a half of that timeout, in whole seconds: 1 s.
	memberTick, memberElection = 50, 500
)

func peerURL(addr string) string { return "https://" + addr }

// peerAddr returns the address of a peer URL; empty if it does not listen there.
func peerAddr(u string) string {
	addr, ok := strings.CutPrefix(u, "https://")
	if !ok {
		return ""
	}
	return addr
}

func config(o Options, failed *fatal) (*embed.Config, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.Name = o.Name
	if cfg.Name == "" {
		cfg.Name = aloneName
	}
	advertised := url.URL{Scheme: "http", Host: "localhost:2380"}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = []url.URL{}, []url.URL{}
	cfg.TickMs, cfg.ElectionMs = aloneTick, aloneElection
	if o.Peer != "" {
		advertised = url.URL{Scheme: "https", Host: o.Peer}
		cfg.ListenPeerUrls = []url.URL{advertised}
		cfg.TickMs, cfg.ElectionMs = memberTick, memberElection
		cfg.TlsMinVersion = "TLS1.3"
		cfg.PeerTLSInfo = transport.TLSInfo{
			CertFile: o.TLS.Cert, KeyFile: o.TLS.Key, TrustedCAFile: o.TLS.CA,
			ClientCertAuth: true, ServerName: pki.ServerName, AllowedHostnames: []string{pki.ServerName},
			// Only the name is checked; etcd would also look up the client's addresses in DNS.
			SkipClientSANVerify: true,
		}
	}
	cfg.AdvertisePeerUrls = []url.URL{advertised}
	// Members that have been up have a client URL, although they do not listen there;
	// Cluster.Members uses it.
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "localhost:2380"}}
	if err := initial(cfg, o, advertised.String()); err != nil {
		return nil, err
	}
	cfg.ForceNewCluster = o.ForceNew
	cfg.AutoCompactionMode = embed.CompactorModeRevision
	cfg.AutoCompactionRetention = keepRevisions
	cfg.MaxTxnOps = maxTxnOps
	cfg.MaxRequestBytes = maxRequestBytes
	cfg.QuotaBackendBytes = quotaBytes
	if o.quota != 0 {
		cfg.QuotaBackendBytes = o.quota
	}
	cfg.UnsafeNoFsync = o.UnsafeNoFsync
	cfg.WatchProgressNotifyInterval = time.Minute
	// A member whose content differs from the others' does not start.
	if err := cfg.ServerFeatureGate.(interface{ Set(string) error }).Set("InitialCorruptCheck=true"); err != nil {
		return nil, err
	}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(quietLogger(os.Stderr, failed))
	return cfg, nil
}

// initial sets the members for the very first start. The token makes the ids of each cluster
// unique, so that members of two clusters never confuse each other.
func initial(cfg *embed.Config, o Options, self string) error {
	if len(o.Cluster) == 0 {
		cfg.InitialCluster, cfg.InitialClusterToken = cfg.Name+"="+self, rand.Text()
		return nil
	}
	if cfg.ClusterState, cfg.InitialClusterToken = embed.ClusterStateFlagExisting, o.bootstrap; o.bootstrap != "" {
		cfg.ClusterState = embed.ClusterStateFlagNew
	}
	cfg.InitialCluster = strings.Join(o.Cluster, ",")
	for _, m := range o.Cluster {
		if m == cfg.Name+"="+self {
			return nil
		}
	}
	return fmt.Errorf("members %v: must include %s=%s, this one", o.Cluster, cfg.Name, self)
}
