package dataplane

import "testing"

// natStories are connections, and what the mux believes of them.
var natStories = map[string]string{
	"forged resets": `
		> S 0 0 0 untrusted
		< SA 0 1 0 untrusted
		> A 1 1 0 trusted
		> PA 1 1 100 trusted
		< A 1 101 0 trusted
		> R 100 0 0 trusted
		> R 102 0 0 trusted
		> RA 1 1 0 trusted
		> R 2147483000 0 0 trusted
		> R -2147483000 0 0 trusted
		< R 0 0 0 trusted
		< R 2 0 0 trusted
		< RA 1000 101 0 trusted
		> R 101 0 0 closing`,
	"a reset before what was sent is acknowledged": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> A 1 1 500
		> A 501 1 500
		> R 1002 0 0 trusted
		> R 2 0 0 trusted
		> R 1000 0 0 trusted
		> R 1001 0 0 closing`,
	"a reset of what was not acknowledged": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> A 1 1 500 trusted
		> R 1 0 0 closing`,
	"a SYN that resets is a reset": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> SR 500 0 0 trusted
		> SR 1 0 0 closing
		> SR 1 0 0 closing`,
	"two answers to a SYN, of which the client took the first": `
		> S 0 0 0
		< SA 0 1 0
		> S 0 0 0
		< SA 1000000 1 0 untrusted
		> A 1 1 0 untrusted
		< A 1 1 100 untrusted
		> A 1 500 0 untrusted
		> A 1 101 0 trusted`,
	"a reset for what has arrived": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> A 1 1 500
		> A 501 1 500
		< A 1 501 0
		> R 500 0 0 trusted
		> R 501 0 0 closing`,
	"forged octets do not move the end": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0 trusted
		> A 2 1 1000 trusted
		> R 2 0 0 trusted
		> R 1002 0 0 trusted
		> R 500 0 0 trusted`,
	"a reset by the server": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		< A 1 1 200
		< A 201 1 200
		> A 1 201 0 trusted
		< R 200 0 0 trusted
		< R 402 0 0 trusted
		< RA 401 1 0 closing`,
	"a FIN that opened the session is not of the connection that a SYN begins": `
		> FA 1000 5 0 untrusted
		> S 1000 0 0 untrusted
		< SA 0 1001 0 untrusted
		> A 1001 1 0 trusted
		< FA 1 1001 0 trusted
		> A 1001 2 0 trusted
		> FA 1001 2 0 trusted
		< A 2 1002 0 closing`,
	"nobody listens": `
		> S 0 0 0 untrusted
		< RA 0 2 0 untrusted
		< RA 0 0 0 untrusted
		< RA 0 1 0 closing`,
	"a reset before the answer, of a forged SYN": `
		> S 0 0 0
		> S 1000 0 0
		> R 1001 0 0 closing
		< SA 0 1 0 untrusted
		> A 1 1 0 trusted`,
	"a reset before the answer": `
		> S 0 0 0
		> R 1 0 0 closing
		< SA 0 1 0 untrusted
		> A 1 1 0 trusted
		> R 2 1 0 trusted
		> R 1 1 0 closing`,
	"a SYN that was not answered is reset": `
		> S 0 0 0
		> R 0 0 0 untrusted
		> R 2 0 0 untrusted
		> R 1 0 0 closing`,
	"the client never asked for it": `
		> S 0 0 0
		< SA 0 1 0
		> R 1 0 0 closing`,
	"octets with the SYN": `
		> S 0 0 300
		< SA 0 301 0
		> A 301 1 0 trusted
		> R 301 0 0 closing`,
	"octets with the SYN that are not taken": `
		> S 0 0 300
		< SA 0 1 0
		> A 1 1 300 trusted
		> R 301 0 0 closing`,
	"the end": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> FA 1 1 10 trusted
		< A 1 11 0 trusted
		< A 1 12 50 trusted
		< FA 51 12 0 trusted
		> A 12 51 0 trusted
		> A 12 52 0 closing`,
	"both end at once": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> FA 1 1 0
		< FA 1 1 0 trusted
		< A 2 2 0 trusted
		> A 2 2 0 closing`,
	"forged ends": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		< FA 1 1 0 trusted
		> FA 500 1 20 trusted
		> FA 7000 2 0 trusted
		< A 2 1 0 trusted
		> A 1 2 100 trusted
		< A 2 101 0 trusted
		> FA 101 2 0 trusted
		< A 2 102 0 closing`,
	"an acknowledgement of another number ends nothing": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> FA 1 1 0
		< A 1 2 0 trusted
		< FA 1 2 0 trusted
		> A 2 1 0 trusted
		> A 2 3 0 trusted
		> A 2 2 0 closing`,
	"an end sent again": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> FA 1 1 0
		> FA 1 1 0 trusted
		< FA 1 2 0 trusted
		< FA 1 2 0 trusted
		> A 2 2 0 closing`,
	"an end that comes before the octets": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> FA 101 1 0 trusted
		> A 1 1 100 trusted
		< A 1 102 0 trusted
		< FA 1 102 0 trusted
		> A 102 2 0 closing`,
	"what was lost before the mux": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> A 501 1 500
		> A 1001 1 500
		< A 1 1 0
		> A 1 1 500
		< A 1 1501 0
		> R 1500 0 0 trusted
		> R 1501 0 0 closing`,
	"octets in the wrong order, and again": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		< A 201 1 200
		< A 1 1 200
		< A 1 1 200
		> A 1 401 0 trusted
		> A 1 1 0 trusted
		< R 401 0 0 closing`,
	"keep-alives": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0
		> A 0 1 0 trusted
		> A 0 1 1 trusted
		< A 1 1 0 trusted
		< A 0 1 0 trusted
		> R 0 0 0 trusted
		> R 1 0 0 closing`,
	"a SYN and its answer again": `
		> S 0 0 0
		> S 0 0 0
		< SA 0 1 0
		< SA 0 1 0 untrusted
		> A 1 1 0 trusted
		< SA 0 1 0 trusted
		> A 1 1 0 trusted`,
	"wrong acknowledgements win no trust": `
		> S 0 0 0
		> A 1 1 0 untrusted
		< SA 0 1 0
		> A 1 0 0 untrusted
		> A 1 2 0 untrusted
		> A 1 -1000000 0 untrusted
		> A 1 100000 0 untrusted
		> PA 1 2147483647 100 untrusted
		> S 0 0 0 untrusted
		> A 1 1 0 trusted`,
	"a forged SYN": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 0 trusted
		> S 5000 0 0 trusted
		< A 1 1 0 trusted
		> R 5001 0 0 trusted
		> A 1 1 10 trusted
		< A 1 11 0 trusted
		> R 11 0 0 closing`,
	"a client that began anew": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 50
		< A 1 51 20 trusted
		> S 90000 0 0 trusted
		< A 21 51 0 trusted
		> R 51 0 0 closing
		= 90000
		~ 70000
		> S 0 0 0 untrusted
		> A 1 1 0 untrusted
		< SA 0 1 0 untrusted
		> A 1 -69999 0 untrusted
		> A 1 1 0 trusted`,
	"a server that began anew": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 50
		< A 1 51 20 trusted
		= 90000
		~ 70000
		> S 0 0 0 trusted
		< SA 0 1 0 untrusted
		> A 1 1 0 trusted
		> R -89949 0 0 trusted
		> R 1 0 0 closing`,
	"a server that forgot": `
		> S 0 0 0
		< SA 0 1 0
		> A 1 1 50
		< A 1 51 20
		> A 51 21 10 trusted
		< R 21 0 0 closing`,
	"an old connection of the port": `
		> S 0 0 0
		< A 1000000 777 0 untrusted
		> R 777 0 0 closing
		> S 0 0 0 untrusted
		< SA 0 1 0
		> A 1 1 0 trusted`,
	"a reset by a server that knows nothing": `
		> A 1 500 20 untrusted
		< R 501 0 0 untrusted
		< R 500 0 0 closing`,
	"and of a segment without acknowledgement": `
		> P 1 0 20 untrusted
		< RA 0 20 0 closing`,
}

// TestNATNumbers: what the mux believes of a connection goes by the sequence numbers of both sides, whatever others send in the client's name; and
// every segment goes on.
func TestNATNumbers(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		f := newNATFixture(t, natServers()...)
		from := uint16(1000)
		for name, story := range natStories {
			from++
			t.Run(name, func(t *testing.T) {
				f.t = t
				f.talk(v6, from).play(story)
				f.compareTables()
			})
		}
		f.t = t
		f.sweep()
	})
}

// TestNATForgedEndsKeepTheTime: a connection of which others say that it is over lives on, idle for as long as one of which nobody says so.
func TestNATForgedEndsKeepTheTime(t *testing.T) {
	f := newNATFixture(t, natServers()...)
	c := f.talk(false, 1000)
	c.shake()
	c.play(`
		> R 5000 0 0
		> FA 5000 1 0
		> S 5000 0 0
		< R 9999 0 0`)
	f.at(f.tick + uint64(f.mux.tables.ticks(natIdle.Trusted)))
	f.sweep()
	if c.class() != "trusted" {
		t.Errorf("it is %q", c.class())
	}
	c.play("> A 1 1 10 trusted")
}
