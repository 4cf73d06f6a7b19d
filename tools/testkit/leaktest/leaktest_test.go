package leaktest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { Main(m) }

// start starts a goroutine that ends when the returned channel is closed.
func start() chan struct{} {
	end := make(chan struct{})
	go func() { <-end }()
	return end
}

func TestFindWaitsForGoroutinesThatEnd(t *testing.T) {
	end := start()
	time.AfterFunc(time.Second, func() { close(end) }) // package goleak alone waits for half a second
	require.NoError(t, Find())
}

func TestFindReturnsTheStacksOfLeakedGoroutines(t *testing.T) {
	end := start()
	defer close(end)
	require.ErrorContains(t, find(0), "leaktest.start")
}
