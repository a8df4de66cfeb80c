package lab

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// datagramRoom is the receive buffer of waiting datagrams, some 1,280 bytes each
// (net.core.rmem_default has space for 166), so that none is lost while a busy machine stalls the
// server for seconds.
const datagramRoom = 16 << 20

// listenUDP listens on every address of one family and enables the destination address of each
// datagram.
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
	err = raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), level, option, 1); err != nil {
			fault = fmt.Errorf("ask for packet information: %w", err)
		} else if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, datagramRoom); err != nil {
			fault = fmt.Errorf("make room for datagrams: %w", err)
		}
	})
	if err = errors.Join(err, fault); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// forgetDevice removes the device from packet information (struct in_pktinfo, in6_pktinfo), so that
// a reply leaves by its route, because replies to datagrams from a tunnel do not go back into it.
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
