package notify

import "testing"

// TestSend: notifications are merged into one, none is lost, and Send does not block.
func TestSend(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 3 {
		Send(c)
	}
	if len(c) != 1 {
		t.Fatalf("%d notifications wait after three, want one", len(c))
	}
	<-c
	if len(c) != 0 {
		t.Fatalf("%d notifications wait after they were received", len(c))
	}
	Send(c)
	if len(c) != 1 {
		t.Fatal("the notification after that is lost")
	}
}
