package lb_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestGolden documents the YAML schema: examples and their canonical form.
func TestGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/golden/*.in.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, input := range inputs {
		t.Run(filepath.Base(input), func(t *testing.T) {
			text, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := lb.Parse(bytes.NewReader(text), input)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, strings.TrimSuffix(input, ".in.yaml")+".golden.yaml", lb.Marshal(objects...))
			again, err := lb.Parse(bytes.NewReader(lb.Marshal(objects...)), "canonical")
			if err != nil {
				t.Fatalf("canonical form is refused: %v", err)
			}
			if got, want := lb.Marshal(again...), lb.Marshal(objects...); !bytes.Equal(got, want) {
				t.Errorf("canonical form changes:\n%s\nto\n%s", want, got)
			}
		})
	}
}

// TestGoldenRefused documents the messages: faulty files and every line that is printed for them.
func TestGoldenRefused(t *testing.T) {
	inputs, err := filepath.Glob("testdata/refused/*.in.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, input := range inputs {
		t.Run(filepath.Base(input), func(t *testing.T) {
			text, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := lb.Parse(bytes.NewReader(text), filepath.Base(input))
			if err == nil {
				t.Fatal("accepted")
			}
			if len(objects) > 0 {
				t.Errorf("%d objects beside an error", len(objects))
			}
			golden(t, strings.TrimSuffix(input, ".in.yaml")+".golden.txt", []byte(err.Error()+"\n"))
		})
	}
}

// golden compares with a file, or writes it.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (go test ./internal/lb -update writes it)", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n got:\n%s\nwant:\n%s", file, got, want)
	}
}
