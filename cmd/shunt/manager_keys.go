package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/shuntlb/shunt/internal/manager"
)

// keyFlags holds the lifetimes of the keys of cookies and connection ids.
type keyFlags struct{ lifetime, cidLifetime, rest time.Duration }

// minKeyTime is the time that nodes need to apply a plan.
const minKeyTime = time.Second

func (k *keyFlags) register(fl *pflag.FlagSet) {
	fl.DurationVar(&k.lifetime, "key-lifetime", manager.DefaultKeyLifetime, "after how long keys of cookies are rotated; 0: never")
	fl.DurationVar(&k.cidLifetime, "cid-key-lifetime", 0, "after how long keys of QUIC connection ids are rotated; 0: never, because servers must fetch them")
	fl.DurationVar(&k.rest, "key-rest", manager.DefaultKeyRest, "how long a former key is read after a rotation; until then there is no other")
}

func (k *keyFlags) check() error {
	switch {
	case k.lifetime != 0 && k.lifetime < minKeyTime:
		return usagef("--key-lifetime: %s: must be 0, or at least %s", k.lifetime, minKeyTime)
	case k.cidLifetime != 0 && k.cidLifetime < minKeyTime:
		return usagef("--cid-key-lifetime: %s: must be 0, or at least %s", k.cidLifetime, minKeyTime)
	case k.rest < minKeyTime:
		return usagef("--key-rest: %s: must be at least %s", k.rest, minKeyTime)
	}
	return nil
}
