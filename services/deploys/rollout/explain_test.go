package rollout_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

func TestStartedHasTheCountsOfTheNewTemplate(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{rollout.Deployment, rollout.StatefulSet, rollout.DaemonSet} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			l, w := settledOf(t, kind)
			switch w := w.(type) {
			case *deployment:
				w.edit("web:2")
				w.run()
			case *statefulSet:
				w.edit("web:2")
				w.run()
			case *daemonSet:
				w.edit("web:2")
				w.run()
			}
			counts := l.last(events.FactStarted).Counts
			if kind == rollout.StatefulSet { // the status that names the revision counts its first pod
				require.Equal(t, 1, counts.Updated)
				return
			}
			require.Zero(t, counts.Updated, "no pod of the new template exists")
			require.Equal(t, 3, counts.Desired)
			require.Equal(t, 3, counts.Available)
		})
	}
}

func TestBlockedExplainsItselfAndFailsTheEnvironment(t *testing.T) {
	t.Parallel()
	d := settled(t, 3)
	d.quota = true
	d.edit("web:2")
	d.run()
	f := d.last(events.FactBlocked)
	require.Equal(t, "QuotaExceeded", f.Reason)
	require.Regexp(t, `^a quota of the cluster does not allow its pods: pods "web-.*exceeded quota`, f.Message)
	require.Equal(t, rollout.Failed, d.state.Status().State)
	require.Equal(t, f.Message, d.state.Status().Message)
	d.quota = false
	d.run()
	require.Equal(t, rollout.Completed, d.state.Status().State)
}
