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

	"lockstep.internal/services/dispatcher/kube"
)

var errDown = errors.New("the API server is down")

// outage is a way to the API server that can be cut.
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

// candidate stands for election until it is stopped, and leads until it is told to end.
type candidate struct {
	leading chan struct{}
	stop    func() error
	outage  *outage
}

// steady is the timing of a Lease that is given back: a busy machine must take it from nobody.
func steady() kube.Timing {
	return kube.Timing{Duration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 200 * time.Millisecond}
}

// brief is the timing of one that is to be lost.
func brief() kube.Timing {
	return kube.Timing{Duration: 15 * time.Second, RenewDeadline: 5 * time.Second, RetryPeriod: 200 * time.Millisecond}
}

func (b *bed) stand(t *testing.T, identity string, busy *atomic.Int32, timing kube.Timing) *candidate {
	t.Helper()
	c := &candidate{leading: make(chan struct{}), outage: &outage{}}
	cfg := rest.CopyConfig(admin)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		c.outage.next = next
		return c.outage
	})
	election := kube.Election{
		Client: newClient(t, cfg), Agent: b.agent, Identity: identity, Follow: func(string) {},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Timing: timing,
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- election.Run(ctx, context.Background(), func(ctx, work context.Context) error {
			if busy.Add(1) != 1 {
				t.Error("two lead at once")
			}
			defer busy.Add(-1)
			close(c.leading)
			<-ctx.Done()
			return context.Cause(work)
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
		require.Fail(t, "does not come to lead")
	}
}

func TestOneLeadsAndHandsOver(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var busy atomic.Int32
	first := b.stand(t, "first", &busy, steady())
	first.leads(t)
	second := b.stand(t, "second", &busy, steady())
	lease, err := b.admin.CoordinationV1().Leases(kube.Home(b.agent)).Get(testContext(t), kube.LeaseName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "first", *lease.Spec.HolderIdentity)
	require.NoError(t, first.stop())
	second.leads(t)
	require.NoError(t, second.stop())
	lease, err = b.admin.CoordinationV1().Leases(kube.Home(b.agent)).Get(testContext(t), kube.LeaseName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, *lease.Spec.HolderIdentity, "given back")
}

func TestALostLeaseEndsAllWorkBeforeAnotherHasIt(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var busy atomic.Int32
	first := b.stand(t, "first", &busy, brief())
	first.leads(t)
	second := b.stand(t, "second", &busy, brief())
	first.outage.down.Store(true)
	second.leads(t)
	require.ErrorIs(t, first.stop(), kube.ErrLost)
	require.NoError(t, second.stop())
}

func TestACandidateThatIsNotElectedEnds(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var busy atomic.Int32
	first := b.stand(t, "first", &busy, steady())
	first.leads(t)
	require.NoError(t, b.stand(t, "second", &busy, steady()).stop())
	require.NoError(t, first.stop())
}
