package manager

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// Directories of the store with a StoredKeySet for each scope: "VNI/VIP", and the name of a
// service.
const (
	dirCookieKeys = root + "keys/cookie/"
	dirCIDKeys    = root + "keys/cid/"
)

// keySetID identifies keys: those of the cookies of a VIP, or those of the connection ids of a
// service.
type keySetID struct {
	vip     place.Key // zero with service
	service string
}

func cookiesOf(vip place.Key) keySetID { return keySetID{vip: vip} }
func cidsOf(service string) keySetID   { return keySetID{service: service} }
func (id keySetID) purpose() plan.KeyPurpose {
	if id.service != "" {
		return plan.KeysOfCIDs
	}
	return plan.KeysOfCookies
}

// shuffles reports whether new keys shuffle member ids (plan.SetKey.Shuffled). Those of cookies do.
func (id keySetID) shuffles() bool { return id.purpose() == plan.KeysOfCookies }

// scope returns the name of the scope in the API.
func (id keySetID) scope() string {
	if id.service != "" {
		return id.service
	}
	return id.vip.VIP.String()
}

// key returns the key in the store.
func (id keySetID) key() string {
	if id.service != "" {
		return dirCIDKeys + id.service
	}
	return fmt.Sprintf("%s%d/%s", dirCookieKeys, id.vip.VNI, id.vip.VIP)
}

// parseKeySetKey parses the result of key.
func parseKeySetKey(key string) (keySetID, error) {
	if service, ok := strings.CutPrefix(key, dirCIDKeys); ok {
		return cidsOf(service), nil
	}
	number, text, _ := strings.Cut(strings.TrimPrefix(key, dirCookieKeys), "/")
	vni, err := strconv.ParseUint(number, 10, 24)
	if err != nil {
		return keySetID{}, fmt.Errorf("must be %sVNI/VIP", dirCookieKeys)
	}
	vip, err := netip.ParseAddr(text)
	return cookiesOf(place.Key{VNI: uint32(vni), VIP: vip}), err
}

// isKeySet reports whether a key of the store holds a key set.
func isKeySet(key string) bool {
	return strings.HasPrefix(key, dirCookieKeys) || strings.HasPrefix(key, dirCIDKeys)
}

func (v *view) foldKeySetLocked(ev store.Event, c *change, touched touched) error {
	id, err := parseKeySetKey(ev.KV.Key)
	if err != nil {
		return err
	}
	var set plan.KeySet
	if !ev.Deleted {
		if set, err = v.secrets.openKeySet(ev.KV.Key, ev.KV.Value); err != nil {
			return err
		}
	}
	c.keys, touched.keys[id] = true, true
	switch {
	case ev.Deleted:
		delete(v.keyMods, id)
		delete(v.state.Cookies, id.vip)
		delete(v.state.CIDs, id.service)
	case id.service != "":
		v.keyMods[id], v.state.CIDs[id.service] = ev.KV.ModRevision, set
	default:
		v.keyMods[id], v.state.Cookies[id.vip] = ev.KV.ModRevision, set
	}
	return nil
}

// keySetLocked returns the stored key set and the revision of its key, or 0 if there is none.
func (v *view) keySetLocked(id keySetID) (set plan.KeySet, mod int64) {
	if id.service != "" {
		return v.state.CIDs[id.service], v.keyMods[id]
	}
	return v.state.Cookies[id.vip], v.keyMods[id]
}

// keyItems holds the plan items of keys, and the host addresses that stamp.
type keyItems struct {
	// muxes holds the items of cookies and connection ids for muxes.
	muxes map[string]muxItem
	// hosts holds the items of cookies for hosts.
	hosts map[string]*apiv1.PlanItem
	// stamps counts the bindings of a host address that stamp, by VIP. stampers holds the
	// addresses, by VIP.
	stamps   map[netip.Addr]map[place.Key]int
	stampers map[place.Key]map[netip.Addr]bool
}

func newKeyItems() keyItems {
	return keyItems{
		muxes: map[string]muxItem{}, hosts: map[string]*apiv1.PlanItem{}, stamps: map[netip.Addr]map[place.Key]int{},
		stampers: map[place.Key]map[netip.Addr]bool{},
	}
}

// stamp counts a binding that was added (1) or removed (-1).
func (k *keyItems) stamp(hi hostItem, by int) {
	if !hi.stamps {
		return
	}
	if k.stamps[hi.host] == nil {
		k.stamps[hi.host] = map[place.Key]int{}
	}
	if k.stampers[hi.vip] == nil {
		k.stampers[hi.vip] = map[netip.Addr]bool{}
	}
	k.stampers[hi.vip][hi.host] = true
	if k.stamps[hi.host][hi.vip] += by; k.stamps[hi.host][hi.vip] > 0 {
		return
	}
	delete(k.stamps[hi.host], hi.vip)
	delete(k.stampers[hi.vip], hi.host)
	if len(k.stamps[hi.host]) == 0 {
		delete(k.stamps, hi.host)
	}
	if len(k.stampers[hi.vip]) == 0 {
		delete(k.stampers, hi.vip)
	}
}

// stampersOf returns those of the host addresses that stamp for a VIP.
func (k *keyItems) stampersOf(vip place.Key, of map[netip.Addr]bool) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for host := range of {
		if k.stamps[host][vip] > 0 {
			out[host] = true
		}
	}
	return out
}

// addTo adds the items of a host with the addresses to a plan.
func (k *keyItems) addTo(out map[string]*apiv1.PlanItem, addresses []netip.Addr) {
	for _, a := range addresses {
		for vip := range k.stamps[a] {
			key := plan.CookiesItem(vip.VNI, vip.VIP)
			if item := k.hosts[key]; item != nil {
				out[key] = item
			}
		}
	}
}

// ofHost returns the item of a key for a host with the addresses, or nil if it has none.
func (k *keyItems) ofHost(key string, addresses []netip.Addr) *apiv1.PlanItem {
	item := k.hosts[key]
	if item == nil {
		return nil
	}
	vip := place.Key{VNI: item.GetCookies().GetVni(), VIP: netip.MustParseAddr(item.GetCookies().GetVip())}
	if slices.ContainsFunc(addresses, func(a netip.Addr) bool { return k.stamps[a][vip] > 0 }) {
		return item
	}
	return nil
}

// rekeyLocked updates the items of a VIP's keys, and records those that were added, removed or
// changed. to are the muxes that have the VIP or had it.
func (v *view) rekeyLocked(vip place.Key, to reach, c *change) {
	cookies, cids := plan.CookiesItem(vip.VNI, vip.VIP), plan.CIDsItem(vip.VNI, vip.VIP)
	var muxes, hosts, ids *apiv1.PlanItem
	if svc := v.vips.claims[vip]; svc != nil {
		if set, mod := v.keySetLocked(cookiesOf(vip)); mod != 0 && (plan.KeysOfCookies.Needs(svc) || plan.KeysOfCookies.Fade(svc, vip.VIP, v.state.Endpoints)) {
			all := set.MuxCookies(vip.VIP)
			muxes = convert.CookiesItem(&all)
			if some, ok := set.HostCookies(vip.VIP); ok {
				hosts = convert.CookiesItem(&some)
			}
		}
		if set, mod := v.keySetLocked(cidsOf(svc.Name)); mod != 0 && (plan.KeysOfCIDs.Needs(svc) || plan.KeysOfCIDs.Fade(svc, vip.VIP, v.state.Endpoints)) {
			all := set.CIDs(vip.VIP)
			ids = convert.CIDsItem(&all)
		}
	}
	for key, item := range map[string]*apiv1.PlanItem{cookies: muxes, cids: ids} {
		if proto.Equal(v.items.keys.muxes[key].item, item) {
			continue
		}
		if v.items.keys.muxes[key] = (muxItem{vip, item}); item == nil {
			delete(v.items.keys.muxes, key)
		}
		c.tellMuxes(to, key)
	}
	if proto.Equal(v.items.keys.hosts[cookies], hosts) {
		return
	}
	if v.items.keys.hosts[cookies] = hosts; hosts == nil {
		delete(v.items.keys.hosts, cookies)
	}
	for host := range v.items.keys.stampers[vip] {
		c.bindingOf(host, cookies, cookies)
	}
}

// keyedVIPsLocked returns the VIPs whose items may depend on keys that changed.
func (v *view) keyedVIPsLocked(ids map[keySetID]bool) (out []place.Key) {
	for id := range ids {
		if id.service == "" {
			out = append(out, id.vip)
		}
		for _, vip := range v.vipsLocked(id.service) {
			out = append(out, plan.VIPKey(vip))
		}
	}
	return out
}

// hostsOf returns the host addresses of bindings.
func hostsOf(bindings map[string]hostItem) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for hi := range maps.Values(bindings) {
		out[hi.host] = true
	}
	return out
}

// noteStampersLocked records a change of the keys for hosts that started or stopped stamping for a
// VIP. had holds those of hosts that stamped before.
func (v *view) noteStampersLocked(vip place.Key, hosts, had map[netip.Addr]bool, c *change) {
	key := plan.CookiesItem(vip.VNI, vip.VIP)
	for host := range hosts {
		if had[host] != (v.items.keys.stamps[host][vip] > 0) {
			c.bindingOf(host, key, key)
		}
	}
}

// stampingNodesLocked returns the sorted names of the hosts that may stamp for a VIP: those that
// do, and those of fading endpoints, whose hosts stamp until they apply bindings without cookies.
func (v *view) stampingNodesLocked(vip place.Key) []string {
	hosts := maps.Clone(v.items.keys.stampers[vip])
	if svc := v.vips.claims[vip]; svc != nil {
		plan.EachEndpoint(svc, func(key lb.EndpointKey, ep *lb.Endpoint) {
			if st, known := v.state.Endpoints[key]; known && plan.VIPOf(key) == vip && st.QUIC == nil && st.Fades(ep) {
				for _, hb := range plan.MakeBindings(svc, ep, &st, "") {
					if hosts == nil {
						hosts = map[netip.Addr]bool{}
					}
					hosts[hb.Host] = true
				}
			}
		})
	}
	names := map[string]bool{}
	for host := range hosts {
		for _, name := range v.wanted.NodesAt(host) {
			if n := v.state.Nodes[name]; n != nil && n.Role == lb.RoleHost {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}
