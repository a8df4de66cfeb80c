package store_test

import (
	"testing"

	"github.com/shuntlb/shunt/internal/store"
	"github.com/shuntlb/shunt/internal/store/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return store.NewMemory() })
}
