package kube_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/tools/testkit/lab"
)

// patience is the deadline of everything that ends sooner unless it is broken.
const (
	patience = 2 * time.Minute
	tick     = 20 * time.Millisecond
)

// admin reaches the lab that all tests share. Each test has an agent of its own, so that none sees
// the objects of another.
var (
	admin  *rest.Config
	agents atomic.Int64
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// The tests wait for the cluster most of the time, so more of them than there are processors
	// run at once.
	if err := flag.Set("test.parallel", "12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	l, err := lab.Start(ctx, lab.Options{Name: "dispatcher-kube", Progress: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if admin, err = clientcmd.BuildConfigFromFlags("", l.Kubeconfig()); err == nil {
		admin.QPS = -1
		admin.WarningHandler = rest.NoWarnings{}
	}
	status := 1
	if err == nil {
		status = m.Run()
	}
	if err := l.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	if err := goleak.Find(); err != nil && status == 0 {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	return status
}

func kubernetesClient(t *testing.T, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	return client
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
