package mux

import "testing"

// TestPasswordFilesAreFollowed: a changed password reaches the speaker without another plan. A
// half-written or missing file changes nothing.
func TestPasswordFilesAreFollowed(t *testing.T) {
	w := newWorld(t)
	w.files["/etc/md5"] = "one\n"
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
	look := func(want string) {
		t.Helper()
		w.agent.rereadPasswords()
		w.agent.forgetSaid()
		w.agent.Speak(t.Context())
		said := w.speaker.History()
		if got := said[len(said)-1].Peers[0].Password; got != want {
			t.Errorf("the speaker has password %q, expected %q", got, want)
		}
	}
	look("one")
	look("one")
	w.files["/etc/md5"] = "t"
	look("one")
	w.files["/etc/md5"] = "two\n"
	look("one")
	look("two")
	w.files["/etc/md5"] = ""
	look("two")
	look("two")
	delete(w.files, "/etc/md5")
	look("two")
	look("two")
	w.files["/etc/md5"] = "three\n"
	look("two")
	look("three")
}
