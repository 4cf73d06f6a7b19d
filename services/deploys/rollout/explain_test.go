package rollout_test

import (
	"strconv"
	"testing"
	"time"

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

// list lists the pods of a revision of the workload: each pod fails for the reason, or none for an empty one.
func (l *fixture) list(uid, version, revision, reason string) {
	l.rv++
	pods := &events.ObservedWorkloadPods{
		Object: events.ObjectMeta{
			ClusterUID: "cluster", Namespace: "shop", Name: "web", UID: uid, ResourceVersion: version, ObservedAt: l.now,
		},
		Kind: events.WorkloadKind(l.kind), RevisionName: revision, ListVersion: strconv.Itoa(l.rv),
	}
	pod := events.WaitingPod{Name: "web-x"}
	switch reason {
	case "":
	case "Unschedulable":
		at := l.now
		pod.Conditions = []events.Condition{{
			Type: "PodScheduled", Status: "False", Reason: reason, Message: "0/2 nodes are available.", LastTransitionTime: &at,
		}}
		pods.Pods = append(pods.Pods, pod)
	default:
		pod.Containers = []events.ContainerState{{
			Name: "main", Image: "web:2", State: events.ContainerStatusWaiting, Reason: reason, Message: "not found",
			ExitCode: 1,
		}}
		pods.Pods = append(pods.Pods, pod)
	}
	l.send(rollout.Input{Pods: pods})
}

func (d *deployment) list(reason string) {
	d.fixture.list(d.objectUID, d.version, d.newestSet().name, reason)
}

// slowRollout returns a Deployment whose second rollout waits for its first new pod.
func slowRollout(t *testing.T) *deployment {
	d := settled(t, 3)
	d.slow = true
	d.edit("web:2")
	d.run()
	require.Equal(t, []string{"started 2"}, d.since(2))
	return d
}

func TestPodThatCannotStartStallsTheRolloutAtOnce(t *testing.T) {
	t.Parallel()
	d := slowRollout(t)
	d.list("")
	require.Equal(t, []string{"started 2"}, d.since(2))
	d.list("ImagePullBackOff")
	require.Equal(t, []string{"started 2", "stalled 2"}, d.since(2))
	f := d.last(events.FactStalled)
	require.Equal(t, "ErrImagePull", f.Reason)
	require.Equal(t, "image web:2 cannot be pulled: not found", f.Message)
	require.Equal(t, rollout.Failed, d.state.Status().State)
	require.Equal(t, f.Message, d.state.Status().Message)
	d.list("ErrImagePull")
	d.wait(5 * time.Minute)
	d.late = true
	d.run()
	require.Equal(t, []string{"started 2", "stalled 2"}, d.since(2), "the deadline adds nothing")

	d.list("")
	require.Equal(t, []string{"started 2", "stalled 2"}, d.since(2), "no pod is available yet")
	d.slow, d.late = false, false
	d.run()
	require.Equal(t, []string{"started 2", "stalled 2", "recovered 2", "completed 2"}, d.since(2))
}

func TestAnotherReasonOfOneStallIsReportedOnce(t *testing.T) {
	t.Parallel()
	d := slowRollout(t)
	d.late = true
	d.run()
	require.Equal(t, "ProgressDeadlineExceeded", d.last(events.FactStalled).Reason)
	for _, reason := range []string{
		"ErrImagePull", "RunContainerError", "CrashLoopBackOff", "RunContainerError", "ErrImagePull",
	} {
		d.now = d.now.Add(10 * time.Second)
		d.list(reason)
	}
	require.Equal(t, []string{"started 2", "stalled 2", "stalled 2", "stalled 2", "stalled 2"}, d.since(2))
	f := d.last(events.FactStalled)
	require.Equal(t, 4, f.Ordinal)
	require.Equal(t, "container main keeps exiting: its command failed with exit code 1", f.Message)
	require.Equal(t, f.Message, d.state.Status().Message)
}

// A container without a readiness probe is ready between two crashes.
func TestFlappingCrashLoopCausesFewFacts(t *testing.T) {
	t.Parallel()
	d := slowRollout(t)
	flip := func(available int) {
		d.now = d.now.Add(15 * time.Second)
		in := d.observation(events.VerbUpserted)
		d.version = in.Workload.Object.ResourceVersion
		in.Workload.ReadyReplicas, in.Workload.AvailableReplicas = available, available
		d.send(in)
	}
	for range 120 { // an hour
		d.list("CrashLoopBackOff")
		flip(3)
		d.list("")
		flip(4)
	}
	require.Equal(t, []string{"started 2", "stalled 2", "recovered 2", "stalled 2"}, d.since(2))
	d.slow = false
	d.run()
	require.Equal(t, []string{"recovered 2", "completed 2"}, d.since(6))
}

func TestRolloutThatRecoveredStallsAgainOnlyAfterAPause(t *testing.T) {
	t.Parallel()
	d := slowRollout(t)
	d.list("CrashLoopBackOff")
	progress := func(available int) {
		in := d.observation(events.VerbUpserted)
		d.version = in.Workload.Object.ResourceVersion
		in.Workload.AvailableReplicas = available
		d.send(in)
	}
	progress(4)
	require.Equal(t, []string{"started 2", "stalled 2", "recovered 2"}, d.since(2))
	d.list("CrashLoopBackOff")
	d.wait(45 * time.Second)
	require.Equal(t, []string{"started 2", "stalled 2", "recovered 2"}, d.since(2))
	d.wait(15 * time.Second)
	require.Equal(t, []string{"started 2", "stalled 2", "recovered 2", "stalled 2"}, d.since(2))
}

func TestUnschedulablePodStallsAndFailsTheEnvironmentAfterTheDeadline(t *testing.T) {
	t.Parallel()
	d := slowRollout(t)
	d.list("Unschedulable")
	require.Equal(t, []string{"started 2"}, d.since(2), "it may find a node soon")
	d.wait(15 * time.Second)
	require.Equal(t, []string{"started 2", "stalled 2"}, d.since(2))
	require.Equal(t, "no node of the cluster can take its pods: 0/2 nodes are available.",
		d.last(events.FactStalled).Message)
	require.Equal(t, rollout.Running, d.state.Status().State, "an autoscaler may add a node")
	d.late = true
	d.run()
	require.Equal(t, []string{"started 2", "stalled 2"}, d.since(2))
	require.Equal(t, rollout.Failed, d.state.Status().State)
	require.Contains(t, d.state.Status().Message, "no node")
}

func TestUnschedulablePodOfAStatefulSetFailsTheEnvironmentAfterTheDeadline(t *testing.T) {
	t.Parallel()
	s := newStatefulSet(t, 1)
	s.create(3, "web:1")
	s.run()
	s.slow = true
	s.edit("web:2")
	s.run()
	s.list(s.objectUID, s.version, s.state.Rollout.Name, "Unschedulable")
	s.wait(time.Minute)
	require.Equal(t, []string{"started 2", "stalled 2"}, s.since(2))
	require.Equal(t, rollout.Running, s.state.Status().State)
	s.wait(11 * time.Minute)
	require.Equal(t, []string{"started 2", "stalled 2"}, s.since(2))
	require.Equal(t, rollout.Failed, s.state.Status().State)
	s.slow = false
	s.run()
	require.Equal(t, []string{"started 2", "stalled 2", "recovered 2", "completed 2"}, s.since(2))
}

func TestPodsOfAStatefulSetAndADaemonSetExplainTheirRollouts(t *testing.T) {
	t.Parallel()
	s := newStatefulSet(t, 1)
	s.create(3, "web:1")
	s.run()
	s.slow = true
	s.edit("web:2")
	s.run()
	s.list(s.objectUID, s.version, s.state.Rollout.Name, "CrashLoopBackOff")
	require.Equal(t, []string{"started 2", "stalled 2"}, s.since(2))

	d := newDaemonSet(t, 1)
	d.create(3, "web:1")
	d.run()
	d.slow = true
	d.edit("web:2")
	d.run()
	d.list(d.objectUID, d.version, "1", "CrashLoopBackOff")
	require.Equal(t, []string{"started 2"}, d.since(2), "the pods have the old template")
	d.list(d.objectUID, d.version, "2", "CrashLoopBackOff")
	require.Equal(t, []string{"started 2", "stalled 2"}, d.since(2))
}

func TestListsThatDoNotDescribeTheRolloutAreIgnored(t *testing.T) {
	t.Parallel()
	d := slowRollout(t)
	name, old := d.newestSet().name, d.version
	d.fixture.list("another", d.version, name, "ErrImagePull")
	d.fixture.list(d.objectUID, d.version, "web-other", "ErrImagePull")
	d.pause()
	d.list("ErrImagePull")
	require.Equal(t, []string{"started 2", "paused 2"}, d.since(2), "a paused rollout waits for a person")
	d.list("")
	d.edit("web:3")
	d.resume()
	d.run()
	started := []string{"started 2", "paused 2", "resumed 2", "superseded 2", "started 3"}
	require.Equal(t, started, d.since(2))
	d.fixture.list(d.objectUID, old, d.newestSet().name, "ErrImagePull")
	require.Equal(t, started, d.since(2), "the list is older than the rollout")

	d.list("")
	newest := d.state.Pods.ListVersion
	d.rv = 0
	d.list("ErrImagePull")
	require.Equal(t, newest, d.state.Pods.ListVersion, "an older list")
	require.Equal(t, started, d.since(2))
}
