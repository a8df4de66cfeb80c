package lab

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// PushWord is the first line of the body of /push.
const PushWord = "wait"

// maxPushAfter bounds the silence of /push.
const maxPushAfter = time.Hour

// pushDigits are those of the time.
const pushDigits = 19

// push answers /push?after=70s with the line PushWord at once, then nothing for so long, and then the time at which it speaks again, in nanoseconds since 1970, as a second line. The
// connection has no keep-alive: between the two lines the server is silent. It is the client who closes it: what a server has closed is given up by its kernel
// sooner.
func push(w http.ResponseWriter, r *http.Request) {
	after, err := time.ParseDuration(r.FormValue("after"))
	if err != nil || after < 0 || after > maxPushAfter {
		http.Error(w, fmt.Sprintf("after: %q: must be 0s to %s", r.FormValue("after"), maxPushAfter), http.StatusBadRequest)
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	if tcp, ok := conn.(*net.TCPConn); ok && tcp.SetKeepAlive(false) != nil {
		return
	}
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", len(PushWord)+1+pushDigits+1)
	if _, err := io.WriteString(conn, head+PushWord+"\n"); err != nil {
		return
	}
	time.Sleep(after)
	// Who does not hear it is the client's to say.
	if _, err := fmt.Fprintf(conn, "%0*d\n", pushDigits, time.Now().UnixNano()); err != nil || conn.SetReadDeadline(time.Now().Add(maxPushAfter)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, conn)
}
