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

// pushDigits is the number of digits of the time.
const pushDigits = 19

// push serves /push?after=70s. It sends the line PushWord immediately, then nothing for that time,
// and then the current time in nanoseconds since 1970 as a second line. The connection has no
// keep-alive, so that the server is silent between the two lines. The client closes the connection,
// because a kernel drops a connection closed by its server sooner.
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
	// The client detects a lost push.
	if _, err := fmt.Fprintf(conn, "%0*d\n", pushDigits, time.Now().UnixNano()); err != nil || conn.SetReadDeadline(time.Now().Add(maxPushAfter)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, conn)
}
