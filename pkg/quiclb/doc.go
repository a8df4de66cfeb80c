// Package quiclb makes and reads the QUIC connection ids (CIDs) by which a load balancer finds the
// server of a connection, independently of the client's current address and port. It supports
// QUIC-LB (draft-ietf-quic-load-balancers-21, section 5) in clear, in one block of AES and by the
// four-pass algorithm, and the fixed server ids of msquic and mvfst.
//
// A server reads its configurations from a file that the balancer's operator writes ([Load],
// [Generator.Follow]), and plugs a [Generator] into its QUIC library. With quic-go, whose interface
// names a type of its own, [For] makes the fitting value:
//
//	generator, err := quiclb.NewGenerator(configs)
//	…
//	transport := &quic.Transport{
//		Conn:                  conn,
//		ConnectionIDGenerator: quiclb.For(generator, quic.ConnectionIDFromBytes),
//	}
//
// # Nonces
//
// A server must not use a nonce twice under one key (section 9.6 of the draft), because two
// connections would then have the same CID. A Generator counts from a random start, and makes
// unroutable CIDs before the count wraps ([Generator.Left]). Two Generators of one process,
// processes with the same server id, and a restarted process start at different values. With nonces
// of 8 bytes or more their counts do not overlap in practice: r starts that make n CIDs each
// overlap with a probability of about r²·n/2^(8·nonceLength), 10^-22 for 1,000 starts of 10^9 CIDs
// with the usual 13 bytes. With 4 bytes an overlap is certain. A server with nonces shorter than 8
// bytes therefore needs a new key for each restart, or a server id for each start.
//
// # Several processes behind one server id
//
// The topmost 12 bits of the server id are the balancer's member ([Member]). The next 12 bits
// belong to the server ([Instance], [Config.WithInstance]); the balancer ignores them. They alone
// do not bring a datagram to the right process. If several processes share one address and port
// (SO_REUSEPORT), the kernel selects by addresses and ports, and a client that migrates reaches
// another process. There are two solutions. Either each process is a backend with a port of its
// own, and needs no instance. Or one process receives all datagrams, reads the instance
// ([Codec.Decode]) and forwards them to the other processes (section 7.2 of the draft has more
// options).
package quiclb
