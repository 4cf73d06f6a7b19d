package leader_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/leader"
	"lockstep.internal/tools/testkit/labtest"
)

const (
	leaseName = "election"
	// timeout is the maximum wait for a condition.
	timeout = 2 * time.Minute
)

var errDown = errors.New("the API server is down")

// outage is a connection to the API server that can be interrupted.
type outage struct {
	next http.RoundTripper
	down atomic.Bool
}

func (o *outage) RoundTrip(request *http.Request) (*http.Response, error) {
	if o.down.Load() {
		return nil, errDown
	}
	return o.next.RoundTrip(request)
}

func (o *outage) WrappedRoundTripper() http.RoundTripper { return o.next }

// longLease is the timing of a Lease that a slow machine does not lose.
func longLease() leader.Config {
	return leader.Config{Duration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 200 * time.Millisecond}
}

// shortLease is the timing of a Lease that the test loses.
func shortLease() leader.Config {
	return leader.Config{Duration: 15 * time.Second, RenewDeadline: 5 * time.Second, RetryPeriod: 200 * time.Millisecond}
}

// fixture is an election in a namespace that does not exist before.
type fixture struct {
	t         *testing.T
	namespace string
	timing    leader.Config
	config    *rest.Config // of an administrator
	admin     *kubernetes.Clientset
	leaders   atomic.Int32 // replicas that lead
}

func newFixture(t *testing.T, timing leader.Config) *fixture {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", labtest.Kubeconfig(t))
	require.NoError(t, err)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return &fixture{t: t, namespace: strings.ToLower(t.Name()), timing: timing, config: config, admin: client}
}

func (f *fixture) lease() *coordinationv1.Lease {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), timeout)
	defer cancel()
	lease, err := f.admin.CoordinationV1().Leases(f.namespace).Get(ctx, leaseName, metav1.GetOptions{})
	require.NoError(f.t, err)
	return lease
}

// candidate is a replica that takes part in the election until it is stopped.
type candidate struct {
	t        *testing.T
	elector  *leader.Elector
	outage   *outage
	leading  chan struct{}
	stopped  chan time.Time // when the context of the leader ended
	tookOver bool           // set before leading is closed
	stop     func() error
}

// start starts a candidate that leads at most once.
func (f *fixture) start(identity string) *candidate {
	f.t.Helper()
	return f.startOf("installation-1", identity)
}

// startOf starts a candidate of an installation.
func (f *fixture) startOf(installation, identity string) *candidate {
	f.t.Helper()
	c := &candidate{t: f.t, outage: &outage{}, leading: make(chan struct{}), stopped: make(chan time.Time, 1)}
	cfg := rest.CopyConfig(f.config)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		c.outage.next = next
		return c.outage
	})
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(f.t, err)
	c.elector = leader.New(leader.Options{
		Config: f.timing, Leases: client.CoordinationV1(), Namespace: f.namespace, Name: leaseName,
		Installation: installation, Identity: identity,
		EnsureNamespace: func(ctx context.Context) error {
			return leader.EnsureNamespace(ctx, client.CoreV1(), f.namespace)
		},
		Logger: slog.New(slog.NewTextHandler(f.t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- c.elector.Run(ctx, context.Background(), func(ctx, drain context.Context, tookOver bool) error {
			if f.leaders.Add(1) != 1 {
				f.t.Error("two replicas lead at the same time")
			}
			defer f.leaders.Add(-1)
			c.tookOver = tookOver
			close(c.leading)
			<-ctx.Done()
			c.stopped <- time.Now()
			return context.Cause(drain)
		})
	}()
	c.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	f.t.Cleanup(func() { _ = c.stop() })
	return c
}

// leads waits until the candidate leads.
func (c *candidate) leads() {
	c.t.Helper()
	select {
	case <-c.leading:
	case <-time.After(timeout):
		require.Fail(c.t, "the replica does not lead")
	}
}
