package quiclb

import (
	"bytes"
	"context"
	"os"
	"time"
)

// Follow keeps the generator at what a file says, until ctx ends: it looks at the file every so often (a second suits), by its content, so that it does not
// matter how the file is replaced. What cannot be read or is wrong leaves the generator as it is. Told, which may be nil, gets the outcome of each
// change, and each new error once; it is called by one goroutine at a time.
func (g *Generator) Follow(ctx context.Context, path string, every time.Duration, told func(Configs, error)) {
	if told == nil {
		told = func(Configs, error) {}
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last []byte
	var complaint string
	for {
		// What was there when the server started is read again, once, and changes nothing.
		text, err := os.ReadFile(path)
		switch {
		case err == nil && last != nil && bytes.Equal(text, last):
		case err == nil:
			last = text
			configs, err := g.take(text)
			complaint = ""
			told(configs, err)
		case err.Error() != complaint:
			complaint, last = err.Error(), nil
			told(nil, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (g *Generator) take(text []byte) (Configs, error) {
	configs, err := Parse(text)
	if err == nil {
		err = g.Set(configs)
	}
	return configs, err
}
