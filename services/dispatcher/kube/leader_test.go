package kube_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockstep.internal/libs/leader"
	"lockstep.internal/services/dispatcher/kube"
)

const leaseName = "dispatcher"

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

// candidate is a replica that takes part in the election until it is stopped.
type candidate struct {
	leading chan struct{}
	stopped chan struct{} // the work has returned
	stop    func() error
	outage  *outage
}

// steady is the timing of a Lease that is released: a busy machine must not lose it.
func steady() leader.Config {
	return leader.Config{Duration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 200 * time.Millisecond}
}

// brief is the timing of a Lease that is lost.
func brief() leader.Config {
	return leader.Config{Duration: 15 * time.Second, RenewDeadline: 5 * time.Second, RetryPeriod: 200 * time.Millisecond}
}

func (b *fixture) stand(t *testing.T, identity string, busy *atomic.Int32, timing leader.Config) *candidate {
	t.Helper()
	c := &candidate{leading: make(chan struct{}), stopped: make(chan struct{}), outage: &outage{}}
	cfg := rest.CopyConfig(admin)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		c.outage.next = next
		return c.outage
	})
	client := newClient(t, cfg)
	elector := leader.New(leader.Options{
		Config: timing, Leases: client.Leases(), Namespace: kube.AgentNamespace(b.agent), Name: leaseName, Identity: identity,
		EnsureNamespace: func(ctx context.Context) error { return client.EnsureAgentNamespace(ctx, b.agent) },
		Logger:          slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- elector.Run(ctx, context.Background(), func(ctx, drain context.Context, _ bool) error {
			if busy.Add(1) != 1 {
				t.Error("two replicas lead at the same time")
			}
			defer busy.Add(-1)
			close(c.leading)
			<-ctx.Done()
			close(c.stopped)
			return context.Cause(drain)
		})
	}()
	var once sync.Once
	var err error
	c.stop = func() error {
		once.Do(func() {
			cancel()
			err = <-ended
		})
		return err
	}
	t.Cleanup(func() { _ = c.stop() })
	return c
}

func (c *candidate) leads(t *testing.T) {
	t.Helper()
	select {
	case <-c.leading:
	case <-time.After(patience):
		require.Fail(t, "the replica does not lead")
	}
}

func TestOneReplicaLeadsAndHandsOver(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	var busy atomic.Int32
	first := b.stand(t, "first", &busy, steady())
	first.leads(t)
	second := b.stand(t, "second", &busy, steady())
	lease, err := b.admin.CoordinationV1().Leases(
		kube.AgentNamespace(b.agent),
	).Get(testContext(t), leaseName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "first", *lease.Spec.HolderIdentity)
	require.NoError(t, first.stop())
	second.leads(t)
	require.NoError(t, second.stop())
	lease, err = b.admin.CoordinationV1().Leases(
		kube.AgentNamespace(b.agent),
	).Get(testContext(t), leaseName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, *lease.Spec.HolderIdentity, "given back")
}

func TestLostLeaseEndsTheWorkBeforeAnotherReplicaLeads(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	var busy atomic.Int32
	first := b.stand(t, "first", &busy, brief())
	first.leads(t)
	second := b.stand(t, "second", &busy, brief())
	first.outage.down.Store(true)
	second.leads(t)
	<-first.stopped
	require.NoError(t, first.stop())
	require.NoError(t, second.stop())
}

func TestStandbyStops(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	var busy atomic.Int32
	first := b.stand(t, "first", &busy, steady())
	first.leads(t)
	require.NoError(t, b.stand(t, "second", &busy, steady()).stop())
	require.NoError(t, first.stop())
}
