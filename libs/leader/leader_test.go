package leader_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/leader"
)

func TestOneReplicaLeadsAndHandsOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease())
	first := f.start("first")
	first.leads()
	require.False(t, first.tookOver)
	second := f.start("second")
	require.Eventually(t, func() bool { return second.elector.Holder() == "first" }, timeout, 20*time.Millisecond)
	require.Equal(t, "first", *f.lease().Spec.HolderIdentity)
	require.Equal(t, "first", first.elector.Holder())
	require.NoError(t, first.stop())
	second.leads()
	require.True(t, second.tookOver, "first has held the Lease")
	require.Equal(t, "second", second.elector.Holder())
	require.NoError(t, second.stop())
	require.Empty(t, *f.lease().Spec.HolderIdentity, "released")
}

func TestFailedRenewalEndsTheWorkBeforeAnotherReplicaLeads(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shortLease())
	first := f.start("first")
	first.leads()
	second := f.start("second")
	require.NoError(t, first.elector.Err())
	first.outage.down.Store(true)
	renewed := f.lease().Spec.RenewTime.Time
	stopped := <-first.stopped
	require.Less(t, stopped.Sub(renewed), shortLease().Duration, "the Lease has not expired")
	second.leads()
	require.True(t, second.tookOver)
	require.Eventually(t, func() bool { return first.elector.Err() != nil }, timeout, 20*time.Millisecond)
	require.ErrorContains(t, first.elector.Err(), "the Kubernetes API server has not answered for")
	require.NoError(t, second.elector.Err())
	require.NoError(t, first.stop())
	require.NoError(t, second.stop())
}

func TestStandbyStops(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease())
	first := f.start("first")
	first.leads()
	require.NoError(t, f.start("second").stop())
	require.Equal(t, "first", *f.lease().Spec.HolderIdentity, "a standby does not release the Lease")
	require.NoError(t, first.stop())
}

func TestInstallationsDoNotShareALease(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease())
	first := f.start("first")
	first.leads()
	require.Equal(t, "installation-1", f.lease().Labels[leader.LabelInstallation])
	other := f.startOf("installation-2", "other")
	require.Eventually(t, func() bool { return other.elector.Err() != nil }, timeout, 20*time.Millisecond)
	require.ErrorContains(t, other.elector.Err(), "belongs to another installation")
	require.NoError(t, first.stop())
	require.Empty(t, *f.lease().Spec.HolderIdentity, "released")

	second := f.start("second")
	second.leads()
	require.Error(t, other.elector.Err(), "it has not acquired the released Lease")
	require.NoError(t, other.stop())
	require.NoError(t, second.stop())
}
