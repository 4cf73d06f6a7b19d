package actualstate_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// shape contains the relevant fields of a Deployment.
type shape struct {
	spec, available, unavailable int
	progressing, availability    string
}

func (s shape) deployment() *events.ObservedWorkload {
	return &events.ObservedWorkload{
		Object:       events.ObjectMeta{Namespace: "ns", Name: "w"},
		SpecReplicas: &s.spec, HasStatus: true, ObservedGeneration: 2, Revision: 2,
		AvailableReplicas: s.available, UnavailableReplicas: s.unavailable,
		Conditions: []events.Condition{
			// The status is wrong on purpose: only the reason is used.
			{Type: "Available", Status: "False", Reason: s.availability},
			{Type: "Progressing", Status: "Unknown", Reason: s.progressing},
		},
	}
}

func replicaSets() []events.ObservedWorkloadRevision {
	return []events.ObservedWorkloadRevision{
		{Object: events.ObjectMeta{Namespace: "ns", Name: "w-hash1"}, Workload: "w", Revision: 1, TemplateHash: "hash1"},
		{Object: events.ObjectMeta{Namespace: "ns", Name: "w-hash2"}, Workload: "w", Revision: 2, TemplateHash: "hash2"},
	}
}

const (
	complete    = "NewReplicaSetAvailable"
	updating    = "ReplicaSetUpdated"
	minimum     = "MinimumReplicasAvailable"
	unavailable = "MinimumReplicasUnavailable"
)

func TestEveryRule(t *testing.T) {
	t.Parallel()
	failed := &actualstate.ApplyError{Revision: 3, Reason: "Forbidden", Message: "the cluster forbids it"}
	running := shape{1, 1, 0, complete, minimum}
	without := func(change func(d *events.ObservedWorkload)) *events.ObservedWorkload {
		d := running.deployment()
		change(d)
		return d
	}
	deployed := func(s shape) actualstate.Input { return actualstate.Input{Deployment: s.deployment()} }
	incomplete := func(change func(d *events.ObservedWorkload)) actualstate.Input {
		return actualstate.Input{Deployment: without(change)}
	}
	withCrash := func(s shape) actualstate.Input {
		return actualstate.Input{Deployment: s.deployment(), ReplicaSets: replicaSets(), Pods: crashing()}
	}
	for name, test := range map[string]struct {
		in     actualstate.Input
		state  actualstate.State
		reason string
	}{
		"1 termination finished": {
			actualstate.Input{Termination: actualstate.TerminationFinished},
			actualstate.Terminated,
			"",
		},
		"1 beats an apply error": {
			actualstate.Input{
				Termination: actualstate.TerminationFinished,
				ApplyError:  failed,
				Deployment:  running.deployment(),
			}, actualstate.Terminated, "",
		},
		"2 an apply error": {actualstate.Input{ApplyError: failed}, actualstate.Error, "Forbidden"},
		"2 beats a termination in progress": {
			actualstate.Input{ApplyError: failed, Termination: actualstate.TerminationInProgress},
			actualstate.Error,
			"Forbidden",
		},
		"2 beats a running Deployment": {
			actualstate.Input{ApplyError: failed, Deployment: running.deployment()},
			actualstate.Error,
			"Forbidden",
		},
		"2 default reason and message": {
			actualstate.Input{ApplyError: &actualstate.ApplyError{}},
			actualstate.Error,
			"ApplyFailed",
		},
		"3 termination in progress": {
			actualstate.Input{Termination: actualstate.TerminationInProgress},
			actualstate.Terminating,
			"ObjectsRemain",
		},
		"3 beats a running Deployment": {
			actualstate.Input{Termination: actualstate.TerminationInProgress, Deployment: running.deployment()},
			actualstate.Terminating,
			"ObjectsRemain",
		},
		"4 no Deployment": {
			actualstate.Input{Termination: actualstate.TerminationNone},
			actualstate.Unknown,
			"NotReported",
		},
		"4 no spec.replicas": {
			incomplete(func(d *events.ObservedWorkload) { d.SpecReplicas = nil }),
			actualstate.Unknown,
			"Incomplete",
		},
		"4 no status": {
			incomplete(func(d *events.ObservedWorkload) { d.HasStatus = false }),
			actualstate.Unknown,
			"Incomplete",
		},
		"4 no conditions": {
			incomplete(func(d *events.ObservedWorkload) { d.Conditions = nil }),
			actualstate.Unknown,
			"Incomplete",
		},
		"pods: not processed by the controller yet": {actualstate.Input{Deployment: without(func(d *events.ObservedWorkload) {
			d.ObservedGeneration, d.Conditions, d.HasStatus = 0, nil, false
		})}, actualstate.Starting, ""},
		"pods: not processed yet, to be stopped": {actualstate.Input{Deployment: without(func(d *events.ObservedWorkload) {
			none := 0
			d.ObservedGeneration, d.Conditions, d.SpecReplicas = 0, nil, &none
		})}, actualstate.Unknown, "Incomplete"},
		"4 no Progressing": {
			incomplete(func(d *events.ObservedWorkload) { d.Conditions = d.Conditions[:1] }),
			actualstate.Unknown,
			"Incomplete",
		},
		"4 Progressing without reason": {deployed(shape{1, 1, 0, "", minimum}), actualstate.Unknown, "Incomplete"},
		"5 deadline exceeded": {
			deployed(shape{1, 0, 1, "ProgressDeadlineExceeded", unavailable}),
			actualstate.Failed,
			"ProgressDeadlineExceeded",
		},
		"5 deadline exceeded, all available": {
			deployed(shape{1, 1, 0, "ProgressDeadlineExceeded", minimum}),
			actualstate.Failed,
			"ProgressDeadlineExceeded",
		},
		"6 created, 1": {
			deployed(shape{1, 0, 1, "NewReplicaSetCreated", unavailable}),
			actualstate.Starting,
			"",
		},
		"6 found, 1": {
			deployed(shape{1, 0, 1, "FoundNewReplicaSet", unavailable}),
			actualstate.Starting,
			"",
		},
		"6 updated, 1, though all is available": {deployed(shape{1, 1, 0, updating, minimum}), actualstate.Starting, ""},
		"6 updated, 1, Available missing":       {deployed(shape{1, 0, 0, updating, ""}), actualstate.Starting, ""},
		"6 created, 0": {
			deployed(shape{0, 0, 0, "NewReplicaSetCreated", unavailable}),
			actualstate.Stopping,
			"",
		},
		"6 found, 0": {
			deployed(shape{0, 1, 0, "FoundNewReplicaSet", minimum}),
			actualstate.Stopping,
			"",
		},
		"6 updated, 0": {deployed(shape{0, 1, 0, updating, minimum}), actualstate.Stopping, ""},
		"6 not with 2 replicas": {
			deployed(shape{2, 1, 1, updating, minimum}),
			actualstate.Unknown,
			"Unrecognized",
		},
		"7 Available without reason": {deployed(shape{1, 1, 0, complete, ""}), actualstate.Unknown, "Incomplete"},
		"7 no Available": {
			incomplete(func(d *events.ObservedWorkload) { d.Conditions = d.Conditions[1:] }),
			actualstate.Unknown,
			"Incomplete",
		},
		"8 stopped":                        {deployed(shape{0, 0, 0, complete, minimum}), actualstate.Stopped, ""},
		"8 stopped, something unavailable": {deployed(shape{0, 0, 1, complete, minimum}), actualstate.Stopped, ""},
		"9 running":                        {deployed(running), actualstate.Running, ""},
		"9 running, two of two":            {deployed(shape{2, 2, 0, complete, minimum}), actualstate.Running, ""},
		"10 stopping":                      {deployed(shape{0, 1, 0, complete, minimum}), actualstate.Stopping, ""},
		"11 starting, available":           {deployed(shape{1, 0, 1, complete, minimum}), actualstate.Starting, ""},
		"11 starting, unavailable":         {deployed(shape{1, 0, 0, complete, unavailable}), actualstate.Starting, ""},
		"12 running with one unavailable": {
			deployed(shape{1, 1, 1, complete, minimum}),
			actualstate.Unknown,
			"Unrecognized",
		},
		"12 available but not minimally": {
			deployed(shape{1, 1, 0, complete, unavailable}),
			actualstate.Unknown,
			"Unrecognized",
		},
		"12 stopped but not minimally": {
			deployed(shape{0, 0, 0, complete, unavailable}),
			actualstate.Unknown,
			"Unrecognized",
		},
		"12 two of none available": {
			deployed(shape{0, 2, 0, complete, minimum}),
			actualstate.Unknown,
			"Unrecognized",
		},
		"12 another progress": {
			deployed(shape{1, 1, 0, "DeploymentPaused", minimum}),
			actualstate.Unknown,
			"Unrecognized",
		},
		"12 another availability": {
			deployed(shape{1, 1, 0, complete, "Other"}),
			actualstate.Unknown,
			"Unrecognized",
		},
		"pods: crash loop of a complete Deployment": {
			withCrash(shape{1, 0, 1, complete, unavailable}),
			actualstate.Failed,
			"CrashLoopBackOff",
		},
		"pods: before rule 6": {
			withCrash(shape{1, 0, 1, updating, unavailable}),
			actualstate.Failed,
			"CrashLoopBackOff",
		},
		"pods: before rule 7": {
			withCrash(shape{1, 0, 1, complete, ""}),
			actualstate.Failed,
			"CrashLoopBackOff",
		},
		"pods: after rule 4": {
			actualstate.Input{
				Deployment:  without(func(d *events.ObservedWorkload) { d.HasStatus = false }),
				ReplicaSets: replicaSets(),
				Pods:        crashing(),
			},
			actualstate.Unknown,
			"Incomplete",
		},
		"pods: the reason of a passed deadline": {
			withCrash(shape{1, 0, 1, "ProgressDeadlineExceeded", unavailable}),
			actualstate.Failed,
			"CrashLoopBackOff",
		},
		"pods: ignored while stopping": {withCrash(shape{0, 0, 0, complete, minimum}), actualstate.Stopped, ""},
		"pods: ignored without the ReplicaSet": {
			actualstate.Input{
				Deployment:  shape{1, 0, 1, complete, unavailable}.deployment(),
				ReplicaSets: replicaSets()[:1],
				Pods:        crashing(),
			},
			actualstate.Starting,
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := actualstate.Compute(test.in)
			require.Equal(t, test.state, got.State)
			require.Equal(t, test.reason, got.Reason)
			require.Equal(t, test.reason != "", got.Message != "", "a reason has a sentence: %q", got.Message)
		})
	}
}

func TestReasonsOfTheProgressDeadline(t *testing.T) {
	t.Parallel()
	late := shape{1, 0, 1, "ProgressDeadlineExceeded", unavailable}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	refused := func(message string) *events.ObservedWorkload {
		d := late.deployment()
		d.Conditions = append(
			d.Conditions,
			events.Condition{Type: "ReplicaFailure", Reason: "FailedCreate", Message: message},
		)
		return d
	}
	reported := late.deployment()
	reported.Conditions[1].Message = `ReplicaSet "w-hash2" has timed out progressing.`
	for name, test := range map[string]struct {
		in              actualstate.Input
		reason, message string
	}{
		"quota": {
			actualstate.Input{
				Deployment: refused(`pods "w" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=0, limited: cpu=1`),
			},
			"QuotaExceeded", `a quota of the cluster does not allow the workspace: pods "w" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=0, limited: cpu=1`,
		},
		"another refusal": {
			actualstate.Input{Deployment: refused("a webhook said no")},
			"FailedCreate",
			"the cluster refuses to create the workspace: a webhook said no",
		},
		"unschedulable, whatever the timeout": {
			actualstate.Input{
				Deployment: late.deployment(), ReplicaSets: replicaSets(), Clock: since, Timeouts: actualstate.Timeouts{
					Unschedulable: time.Hour,
				},
				Pods: []events.ObservedPod{pod(func(p *events.ObservedPod) {
					p.Conditions = []events.Condition{
						{Type: "PodScheduled", Reason: "Unschedulable", Message: "no room", LastTransitionTime: &since},
					}
				})},
			}, "Unschedulable", "no node of the cluster can take the workspace: no room",
		},
		"message of the Progressing condition": {
			actualstate.Input{Deployment: reported},
			"ProgressDeadlineExceeded",
			`the workspace did not become ready in time: ReplicaSet "w-hash2" has timed out progressing.`,
		},
		"no message": {
			actualstate.Input{Deployment: late.deployment()},
			"ProgressDeadlineExceeded",
			"the workspace did not become ready in time",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(
				t,
				actualstate.Result{State: actualstate.Failed, Reason: test.reason, Message: test.message},
				actualstate.Compute(test.in),
			)
		})
	}
}

func TestExpectedChanges(t *testing.T) {
	t.Parallel()
	for _, s := range actualstate.States() {
		require.True(t, actualstate.Expected(s, s))
		require.True(t, actualstate.Expected(s, actualstate.Unknown))
		require.True(t, actualstate.Expected(actualstate.Unknown, s))
		if s != actualstate.CreationRequested && s != actualstate.Unknown {
			require.True(
				t,
				actualstate.Expected(actualstate.CreationRequested, s),
				"%s is reachable from creation_requested",
				s,
			)
			require.Equal(
				t,
				actualstate.Expected(s, actualstate.CreationRequested),
				s == actualstate.Error,
				"%s is past its creation",
				s,
			)
		}
		if s != actualstate.Terminated && s != actualstate.Unknown {
			require.False(t, actualstate.Expected(actualstate.Terminated, s), "terminated is final, not %s", s)
		}
	}
	require.True(t, actualstate.Expected(actualstate.Running, actualstate.Stopped), "stopping may be skipped")
	require.True(t, actualstate.Expected(actualstate.Failed, actualstate.Terminated))
	require.True(t, actualstate.Expected(actualstate.Terminating, actualstate.Error))
	require.True(t, actualstate.Expected(actualstate.Error, actualstate.Stopping), "through running")
	require.True(t, actualstate.Expected("made_up", "made_up"))
	require.False(t, actualstate.Expected("made_up", actualstate.Running))
}

func TestStuckTerminationNamesThePodThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	stuck := pod(func(p *events.ObservedPod) { p.Object.DeletedAt, p.Node = new(since.Add(time.Minute)), "node-1" })
	const message = "pod w-2-a has been terminating since 2026-01-02T03:05:05Z; its volume may not unmount, or its node " +
		"node-1 may be lost"
	in := actualstate.Input{
		Termination: actualstate.TerminationInProgress, TerminatingSince: since, Clock: since.Add(3*time.Minute - 1),
		RemainingReason: "ObjectsRemain", RemainingMessage: "Some resources are remaining: pods.",
		Pods:     []events.ObservedPod{pod(func(p *events.ObservedPod) { p.Object.Name = "a" }), stuck},
		Timeouts: actualstate.Timeouts{PodTermination: 2 * time.Minute, Termination: 4 * time.Minute},
	}
	require.Equal(t, actualstate.Result{
		State: actualstate.Terminating, Reason: "ObjectsRemain", Message: "Some resources are remaining: pods.",
		RecomputeAt: since.Add(3 * time.Minute),
	}, actualstate.Compute(in), "the pod has time to end")

	in.Clock = since.Add(3 * time.Minute)
	for _, reason := range []string{"ObjectsRemain", "VolumeInUse", ""} {
		in.RemainingReason = reason
		require.Equal(t, actualstate.Result{
			State: actualstate.Terminating, Reason: "PodNotEnding", Message: message, RecomputeAt: since.Add(4 * time.Minute),
		}, actualstate.Compute(in), reason)
	}
	in.Clock = since.Add(4 * time.Minute)
	require.Equal(t, actualstate.Result{
		State: actualstate.Error, Reason: "PodNotEnding",
		Message: "the workspace has been terminating since 2026-01-02T03:04:05Z: " + message,
	}, actualstate.Compute(in))

	in.RemainingReason = "FinalizersRemain"
	require.Equal(t, "FinalizersRemain", actualstate.Compute(in).Reason, "the dispatcher knows a better one")
}

func TestLongTerminationIsAnErrorWithItsReason(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	in := actualstate.Input{
		Termination: actualstate.TerminationInProgress, TerminatingSince: since, Clock: since.Add(time.Minute),
		RemainingReason: "FinalizersRemain", RemainingMessage: "ConfigMap ws/files waits for its finalizer a/b",
		Timeouts: actualstate.Timeouts{Termination: 2 * time.Minute},
	}
	require.Equal(t, actualstate.Result{
		State: actualstate.Terminating, Reason: "FinalizersRemain",
		Message: "ConfigMap ws/files waits for its finalizer a/b", RecomputeAt: since.Add(2 * time.Minute),
	}, actualstate.Compute(in))

	in.Clock = since.Add(2 * time.Minute)
	require.Equal(t, actualstate.Result{
		State: actualstate.Error, Reason: "FinalizersRemain",
		Message: "the workspace has been terminating since 2026-03-04T05:06:07Z: " +
			"ConfigMap ws/files waits for its finalizer a/b",
	}, actualstate.Compute(in))

	in.RemainingReason, in.RemainingMessage = "", ""
	require.Equal(t, actualstate.Result{
		State: actualstate.Error, Reason: "ObjectsRemain",
		Message: "the workspace has been terminating since 2026-03-04T05:06:07Z: " +
			"the objects of the workspace are being deleted",
	}, actualstate.Compute(in), "an old dispatcher reports no reason")

	in.Timeouts.Termination = 0
	require.Equal(t, actualstate.Terminating, actualstate.Compute(in).State, "0 is never")
}
