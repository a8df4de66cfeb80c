package lab

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// listenUDP listens on every address of one family and asks for the destination address of each datagram.
func listenUDP(network string, port int) (*net.UDPConn, error) {
	conn, err := net.ListenUDP(network, &net.UDPAddr{Port: port})
	if err != nil {
		return nil, err
	}
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if network == "udp6" {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, err
	}
	var fault error
	if err := raw.Control(func(fd uintptr) { fault = unix.SetsockoptInt(int(fd), level, option, 1) }); err == nil {
		err = fault
	}
	if fault != nil {
		conn.Close()
		return nil, fmt.Errorf("ask for packet information: %w", fault)
	}
	return conn, nil
}

// forgetDevice takes the device out of packet information (struct in_pktinfo, in6_pktinfo), so that an answer leaves by its route: out of
// a tunnel come datagrams whose answers do not go back into it.
func forgetDevice(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			clear(m.Data[:4])
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			clear(m.Data[16:20])
		}
	}
}
