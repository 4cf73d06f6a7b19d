package watcher_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/tools/testkit/lab"
)

const timeout = 60 * time.Second

// cluster is one control plane for all tests: each has an agent, and so labels and namespaces, of
// its own.
var cluster struct { //nolint:gochecknoglobals // starting one takes seconds
	once sync.Once
	lab  *lab.Lab
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if cluster.lab != nil {
		if err := cluster.lab.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// kubeconfig leads to a real control plane, which is built and started for the first test that asks.
func kubeconfig(t *testing.T) string {
	t.Helper()
	cluster.once.Do(func() {
		cluster.lab, cluster.err = lab.Start(context.Background(), lab.Options{Progress: os.Stderr})
	})
	require.NoError(t, cluster.err)
	return cluster.lab.Kubeconfig()
}
