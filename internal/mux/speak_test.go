package mux

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestSpeakerHearsWhatIsNew: a change that affects no route sends nothing to the speaker, a sign of
// life is always sent, and a failed call is repeated.
func TestSpeakerHearsWhatIsNew(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11", "10.20.2.11")
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	w.probe("10.20.2.11", true, "connected")
	said := len(w.speaker.History())
	expect := func(when string, more int) {
		t.Helper()
		now := len(w.speaker.History())
		if now-said != more {
			t.Errorf("%s the speaker heard %d words, expected %d", when, now-said, more)
		}
		said = now
	}
	p.Endpoints[0].Generation++
	w.apply(p)
	expect("after a change of no route", 0)
	w.clock.Advance(signOfLife)
	w.agent.Speak(t.Context())
	expect("after a while", 1)
	w.apply(planOf([]string{"203.0.113.10", "203.0.113.11"}, "10.20.1.11", "10.20.2.11"))
	expect("with a new VIP", 1)
	w.apply(p)
	expect("with one that goes", 2) // before the tables change, and after that with a status read

	w.clock.Advance(signOfLife)
	w.speaker.Fail(errors.New("no answer"))
	w.agent.Speak(t.Context())
	w.speaker.Fail(nil)
	w.agent.Speak(t.Context())
	expect("that did not answer", 1)
}

// TestSignOfLifeIsNeverLate: a state sent between two signs of life does not delay the next one.
func TestSignOfLifeIsNeverLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
		w.probe("10.20.1.11", true, "connected")
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go w.agent.Run(ctx)
		synctest.Wait()
		w.clock.Advance(signOfLife - time.Millisecond)
		w.apply(planOf([]string{"203.0.113.10", "203.0.113.11"}, "10.20.1.11"))
		synctest.Wait()
		said := len(w.speaker.History())
		w.clock.Advance(time.Millisecond)
		synctest.Wait()
		if now := len(w.speaker.History()); now != said+1 {
			t.Errorf("the speaker heard %d words at its sign of life, expected 1", now-said)
		}
	})
}

// TestMendedInterfaceIsTold: the speaker immediately receives the routes again, although it
// received the same ones just before.
func TestMendedInterfaceIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
		w.probe("10.20.1.11", true, "connected")
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go w.agent.Tend(ctx, func() (string, error) { return "attached again", nil })
		synctest.Wait()
		w.clock.Advance(tendInterval - signOfLife - signOfLife/2)
		go w.agent.Run(ctx)
		synctest.Wait()
		w.clock.Advance(signOfLife)
		synctest.Wait()
		said := len(w.speaker.History())
		w.clock.Advance(signOfLife / 2)
		synctest.Wait()
		if now := len(w.speaker.History()); now != said+1 {
			t.Errorf("the speaker heard %d words once the interface was mended, expected 1", now-said)
		}
	})
}
