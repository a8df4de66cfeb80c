// Package quiclb makes and reads the QUIC connection ids (CIDs) by which a load balancer finds a connection's server, whatever
// address and port the client has by now: those of QUIC-LB (draft-ietf-quic-load-balancers-21, section 5) in clear, in one block of AES and
// by the four-pass algorithm, and the fixed server ids of msquic and mvfst.
//
// A server reads its configurations from a file that the balancer's operator writes ([Load], [Generator.Follow]), and plugs a [Generator] into its QUIC
// library. With quic-go, whose interface names a type of its own, [For] makes the fitting value:
//
//	generator, err := quiclb.NewGenerator(configs)
//	…
//	transport := &quic.Transport{Conn: conn, ConnectionIDGenerator: quiclb.For(generator, quic.ConnectionIDFromBytes)}
//
// # Nonces
//
// Under a key no nonce may be used twice by a server (section 9.6 of the draft): the same CID would be two connections'. A Generator counts, from a random
// start, and makes CIDs that route nowhere before the count comes round ([Generator.Left]); two Generators of one process, or of processes with the same server id,
// and a process that starts again, begin elsewhere. With nonces of 8 bytes or more their counts do not meet in practice: r starts that make n CIDs each meet with
// odds of about r²·n/2^(8·nonceLength), 10^-22 for 1,000 starts of 10^9 CIDs with the usual 13 bytes. With 4 bytes the same is certain: a server with nonces
// shorter than 8 bytes needs a new key whenever it starts again, or a server id for each start.
//
// # Several processes behind one server id
//
// The balancer's member is the topmost 12 bits of the server id ([Member]). The next 12 bits are the server's own ([Instance],
// [Config.WithInstance]): the balancer does not look at them. They do not bring a datagram to the right process by themselves. Where several processes
// share one address and port (SO_REUSEPORT) the kernel chooses by addresses and ports, and a client that migrates lands at another process. So either each
// process is a backend by itself, on a port of its own, and needs no instance; or one process receives, reads the instance ([Codec.Decode]) and hands
// datagrams on to the others (section 7.2 of the draft has more ways).
package quiclb
