package scale_test

import (
	"os"
	"testing"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/tools/stack"
)

// shared is a system of release builds: all other tests detect data races. A node has room for 110
// pods.
var shared = fixture.Share(func(tb testing.TB) stack.Options {
	return stack.Options{Nodes: 4, Programs: fixture.BuildReleaseServices(tb)}
}, nil, nil)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, 1)) }
