package kube_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/tools/testkit/labtest"
)

const (
	timeout = 2 * time.Minute // of a wait for a condition
	tick    = 20 * time.Millisecond
)

// agents counts the agents of the tests: each test has its own in the shared cluster.
var agents atomic.Int64

func TestMain(m *testing.M) {
	labtest.Parallel(12)
	labtest.Main(m)
}

// admin returns the configuration of an administrator of the shared cluster.
func admin(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", labtest.Kubeconfig(t))
	require.NoError(t, err)
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	return config
}

func kubernetesClient(t *testing.T, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	return client
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return ctx
}
