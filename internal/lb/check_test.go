package lb

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestEveryFieldOfHealthCounts: values that differ in any field are unequal.
func TestEveryFieldOfHealthCounts(t *testing.T) {
	for i := range reflect.TypeFor[Health]().NumField() {
		var a, b Health
		switch f := reflect.ValueOf(&b).Elem().Field(i); f.Interface().(type) {
		case []Check:
			b.Checks = []Check{{}}
		case *Damping:
			b.Damping = &Damping{}
		case *Passive:
			b.Passive = &Passive{}
		case string:
			f.SetString("x")
		default:
			f.SetUint(1)
		}
		if a.Equal(b) || b.Equal(a) || !b.Equal(b) {
			t.Errorf("%s does not count", reflect.TypeFor[Health]().Field(i).Name)
		}
	}
	same := Health{Damping: &Damping{Flips: 3}}
	if !same.Equal(Health{Damping: &Damping{Flips: 3}}) || same.Equal(Health{Damping: &Damping{Flips: 4}}) {
		t.Error("dampings are not compared by what they say")
	}
}

func TestStatusSetHas(t *testing.T) {
	set := StatusSet("200-299,304,400-403")
	for code := range 1000 {
		want := code >= 200 && code <= 299 || code == 304 || code >= 400 && code <= 403
		if set.Has(code) != want {
			t.Errorf("%d: %v", code, !want)
		}
	}
	if StatusSet("").Has(0) {
		t.Error("the empty set has 0")
	}
}

func TestArgumentsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOf(rapid.StringMatching(`[ -~]{0,5}`)).Draw(t, "arguments")
		a, err := NewArguments(list)
		if err != nil || !slices.Equal(a.List(), list) {
			t.Fatalf("%q became %q, %v", list, a.List(), err)
		}
	})
	if _, err := NewArguments([]string{"a\x00b"}); err == nil || !strings.Contains(err.Error(), `argument "a\x00b": must hold no NUL`) {
		t.Errorf("got %v", err)
	}
}

func TestHeadersInOrder(t *testing.T) {
	var got []string
	for name, value := range Headers("B: 1: 2\nA: x").All {
		got = append(got, name+"="+value)
	}
	if want := []string{"B=1: 2", "A=x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
