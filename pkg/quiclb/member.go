package quiclb

import "fmt"

// MaxInstance is the largest process number behind a server id.
const MaxInstance = 1<<12 - 1

// Member returns the balancer's number of a server: the topmost 12 bits of a server id of 2 bytes
// or more.
func Member(serverID []byte) uint16 { return uint16(serverID[0])<<4 | uint16(serverID[1])>>4 }

// Instance returns the server's own number of a process: the 12 bits after the member's, of a
// server id of 3 bytes or more.
func Instance(serverID []byte) uint16 { return uint16(serverID[1]&0x0f)<<8 | uint16(serverID[2]) }

// WithInstance returns the configuration of one of several processes that share a server. The
// package documentation describes how datagrams reach it.
func (c Config) WithInstance(number uint16) (Config, error) {
	switch {
	case number > MaxInstance:
		return c, fmt.Errorf("instance: %d: must be 0 to %d", number, MaxInstance)
	case len(c.ServerID) < 3:
		return c, fmt.Errorf("serverId: %d bytes: must be at least 3 for an instance", len(c.ServerID))
	case Instance(c.ServerID) != 0:
		return c, fmt.Errorf("serverId: instance %d is in it already: must be 0", Instance(c.ServerID))
	}
	c.ServerID = append([]byte(nil), c.ServerID...)
	c.ServerID[1] |= byte(number >> 8)
	c.ServerID[2] = byte(number)
	return c, nil
}
