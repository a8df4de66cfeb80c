package quiclb

import (
	"bytes"
	"context"
	"os"
	"time"
)

// Follow applies the configurations in a file to the generator until ctx ends. It reads the file at
// the interval every (a second is suitable) and compares its content, so it does not matter how the
// file is replaced. An unreadable or invalid file leaves the generator unchanged. told, which may
// be nil, receives the outcome of each change, and each new error once; calls do not overlap.
func (g *Generator) Follow(ctx context.Context, path string, every time.Duration, told func(Configs, error)) {
	if told == nil {
		told = func(Configs, error) {}
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last []byte
	var complaint string
	for {
		// The first pass reads the file that the server started with once more and changes nothing.
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
