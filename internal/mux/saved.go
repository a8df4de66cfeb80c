package mux

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/shuntlb/shunt/internal/lb"
)

// savedName is the file in the run directory that holds the last health of every member. It does not outlive a boot:
// neither do the tables.
const savedName = "health.json"

// savedMember is one line of the file.
type savedMember struct {
	VNI      uint32         `json:"vni"`
	VIP      netip.Addr     `json:"vip"`
	Protocol uint8          `json:"protocol"`
	Port     uint16         `json:"port"`
	Backend  netip.AddrPort `json:"backend"`
	Alive    bool           `json:"alive"`
}

// loadHealth reads what the agent before this one knew; a file that is not there or broken is as good as none.
func loadHealth(runDir string) (map[backend]bool, error) {
	data, err := os.ReadFile(filepath.Join(runDir, savedName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read saved health: %w", err)
	}
	var list []savedMember
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("read saved health: %s: %w", savedName, err)
	}
	out := make(map[backend]bool, len(list))
	for _, s := range list {
		key := backend{
			lb.EndpointKey{VNI: s.VNI, VIP: s.VIP, Protocol: lb.Protocol(s.Protocol), Port: s.Port},
			lb.BackendKey{DIP: s.Backend.Addr(), Port: s.Backend.Port()},
		}
		out[key] = s.Alive
	}
	return out, nil
}

// saveHealth replaces the file.
func saveHealth(runDir string, list []savedMember) error {
	data, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("save health: %w", err)
	}
	path := filepath.Join(runDir, savedName)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("save health: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("save health: %w", err)
	}
	return nil
}

// list is the roster in the file's form. Members that no probe has judged yet are left out.
func (r *roster) list() []savedMember {
	var out []savedMember
	for k, m := range r.members {
		if m.words == "" && !m.state.Alive() {
			continue
		}
		out = append(out, savedMember{
			VNI: k.Endpoint.VNI, VIP: k.Endpoint.VIP, Protocol: uint8(k.Endpoint.Protocol), Port: k.Endpoint.Port,
			Backend: netip.AddrPortFrom(k.Backend.DIP, k.Backend.Port), Alive: m.state.Alive(),
		})
	}
	return out
}
