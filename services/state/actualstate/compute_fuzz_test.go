package actualstate_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// reference is a second implementation of the rules in doc.go, without pods.
func reference(in actualstate.Input) actualstate.State {
	reason := func(kind string) string {
		for _, c := range in.Deployment.Conditions {
			if c.Type == kind {
				return c.Reason
			}
		}
		return ""
	}
	has := func(f func(d *events.ObservedWorkload) bool) func() bool {
		return func() bool { return f(in.Deployment) }
	}
	complete := func() bool {
		return reason("Progressing") == "NewReplicaSetAvailable" && reason("Available") == "MinimumReplicasAvailable"
	}
	progressing := func(d *events.ObservedWorkload, replicas int) bool {
		return slices.Contains(
			[]string{"NewReplicaSetCreated", "FoundNewReplicaSet", "ReplicaSetUpdated"},
			reason("Progressing"),
		) &&
			*d.SpecReplicas == replicas
	}
	for _, rule := range []struct {
		when  func() bool
		state actualstate.State
	}{
		{func() bool { return in.Termination == actualstate.TerminationFinished }, actualstate.Terminated},
		{func() bool { return in.ApplyError != nil }, actualstate.Error},
		{func() bool {
			return in.Termination == actualstate.TerminationInProgress && in.Timeouts.Termination > 0 &&
				in.Clock.Sub(in.TerminatingSince) >= in.Timeouts.Termination
		}, actualstate.Error},
		{func() bool { return in.Termination == actualstate.TerminationInProgress }, actualstate.Terminating},
		{func() bool { return in.Deployment == nil }, actualstate.Unknown},
		{has(func(d *events.ObservedWorkload) bool {
			return d.SpecReplicas == nil || !d.HasStatus || reason("Progressing") == ""
		}), actualstate.Unknown},
		{
			has(func(*events.ObservedWorkload) bool { return reason("Progressing") == "ProgressDeadlineExceeded" }),
			actualstate.Failed,
		},
		{has(func(d *events.ObservedWorkload) bool { return progressing(d, 0) }), actualstate.Stopping},
		{has(func(d *events.ObservedWorkload) bool { return progressing(d, 1) }), actualstate.Starting},
		{has(func(*events.ObservedWorkload) bool { return reason("Available") == "" }), actualstate.Unknown},
		{has(func(d *events.ObservedWorkload) bool {
			return complete() && *d.SpecReplicas == 0 && d.AvailableReplicas == 0
		}), actualstate.Stopped},
		{has(func(d *events.ObservedWorkload) bool {
			return complete() && *d.SpecReplicas == d.AvailableReplicas && d.UnavailableReplicas == 0
		}), actualstate.Running},
		{has(func(d *events.ObservedWorkload) bool {
			return complete() && *d.SpecReplicas == 0 && d.AvailableReplicas == 1
		}), actualstate.Stopping},
		{has(func(d *events.ObservedWorkload) bool {
			either := complete() || reason("Progressing") == "NewReplicaSetAvailable" &&
				reason("Available") == "MinimumReplicasUnavailable"
			return either && *d.SpecReplicas == 1 && d.AvailableReplicas == 0
		}), actualstate.Starting},
	} {
		if rule.when() {
			return rule.state
		}
	}
	return actualstate.Unknown
}

// FuzzFirstMatchWins generates inputs from known reasons and compares with the reference.
func FuzzFirstMatchWins(f *testing.F) {
	f.Add([]byte{0, 0, 1, 1, 4, 1, 1, 1, 0, 0, 0})
	f.Add([]byte{1, 1, 1, 1, 3, 2, 0, 1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, seed []byte) {
		in := inputFromBytes(seed)
		got := actualstate.Compute(in)
		requireValid(t, got)
		require.Equal(t, got, actualstate.Compute(in), "Compute is deterministic")
		want := reference(in)
		podFailed := got.State == actualstate.Failed && want != actualstate.Failed
		if podFailed {
			require.NotEmpty(t, in.Pods, "only pods can change the result of the rules to failed")
			in.Pods = nil
			got = actualstate.Compute(in)
		}
		require.Equal(t, want, got.State)
		if in.Deployment != nil {
			for i := range in.Deployment.Conditions {
				in.Deployment.Conditions[i].Status = "True"
			}
			require.Equal(t, want, actualstate.Compute(in).State, "the status of a condition is ignored")
		}
	})
}

// FuzzUntil checks that the result does not change before RecomputeAt without a new event.
func FuzzUntil(f *testing.F) {
	f.Add([]byte{0, 10, 20, 30, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 1, 1, 60}, uint8(40))
	f.Add([]byte("a history of pods that end, and do not"), uint8(90))
	f.Fuzz(func(t *testing.T, seed []byte, seconds uint8) {
		in := inputFromBytes(seed)
		for i := range in.Pods {
			in.Pods[i].Object.Name = strconv.Itoa(i)
			if i < len(seed) {
				in.Pods[i].Object.CreatedAt = new(time.Unix(int64(seed[i]), 0))
			}
		}
		now := actualstate.Compute(in)
		later := in
		later.Clock = in.Clock.Add(time.Duration(seconds) * time.Second)
		if !now.RecomputeAt.IsZero() {
			require.True(t, now.RecomputeAt.After(in.Clock))
			if !later.Clock.Before(now.RecomputeAt) {
				later.Clock = now.RecomputeAt.Add(-1)
			}
		}
		require.Equal(t, now, actualstate.Compute(later), "at %s, having been computed at %s", later.Clock, in.Clock)
	})
}

// FuzzComputeAcceptsAnyInput checks that Compute returns a valid result for any input.
func FuzzComputeAcceptsAnyInput(f *testing.F) {
	f.Add(
		[]byte(`{"object":{},"spec_replicas":1,"has_status":true,"revision":1}`),
		[]byte(`{"object":{},"conditions":[{"type":"PodScheduled","reason":"Unschedulable"}]}`),
		int64(0),
	)
	f.Fuzz(func(t *testing.T, deployment, pod []byte, clock int64) {
		in := actualstate.Input{Clock: time.Unix(clock%(1<<40), 0)}
		if json.Unmarshal(deployment, &in.Deployment) != nil {
			return
		}
		var p events.ObservedPod
		if json.Unmarshal(pod, &p) != nil {
			return
		}
		in.Pods = []events.ObservedPod{p, p}
		if in.Deployment != nil {
			in.ReplicaSets = []events.ObservedWorkloadRevision{
				{
					Workload:     in.Deployment.Object.Name,
					Revision:     in.Deployment.Revision,
					Object:       events.ObjectMeta{Namespace: in.Deployment.Object.Namespace},
					TemplateHash: p.PodTemplateHash,
				},
			}
		}
		requireValid(t, actualstate.Compute(in))
	})
}

func requireValid(t *testing.T, r actualstate.Result) {
	t.Helper()
	require.Contains(t, actualstate.States(), r.State)
	if r.State == actualstate.Failed || r.State == actualstate.Error {
		require.NotEmpty(t, r.Reason)
		require.NotEmpty(t, r.Message)
	}
}

func inputFromBytes(seed []byte) actualstate.Input {
	at := 0
	pick := func(n int) int {
		if at >= len(seed) {
			return 0
		}
		at++
		return int(seed[at-1]) % n
	}
	choose := func(words ...string) string { return words[pick(len(words))] }
	in := actualstate.Input{
		Termination: actualstate.Termination(choose("none", "in_progress", "finished", "")),
		Clock: time.Unix(
			int64(pick(256)),
			0,
		),
		Timeouts: actualstate.Timeouts{
			Unschedulable:  time.Duration(pick(256)) * time.Second,
			PodTermination: time.Duration(pick(256)) * time.Second,
			Termination:    time.Duration(pick(3)) * time.Minute,
		},
	}
	in.TerminatingSince = time.Unix(int64(pick(256)), 0)
	if pick(4) == 3 {
		in.ApplyError = &actualstate.ApplyError{Reason: choose("", "Invalid"), Message: choose("", "no")}
	}
	if pick(8) == 7 {
		return in
	}
	d := &events.ObservedWorkload{
		HasStatus:           pick(8) != 7,
		AvailableReplicas:   pick(3),
		UnavailableReplicas: pick(2),
		Revision:            pick(2),
	}
	if replicas := pick(4); replicas < 3 {
		d.SpecReplicas = &replicas
	}
	d.Conditions = []events.Condition{
		{
			Type: choose("Progressing", "Other"),
			Reason: choose(
				"",
				"NewReplicaSetCreated",
				"FoundNewReplicaSet",
				"ReplicaSetUpdated",
				"NewReplicaSetAvailable",
				"ProgressDeadlineExceeded",
				"Other",
			),
			Status: choose("True", "False"),
		},
		{
			Type:   choose("Available", "Other"),
			Reason: choose("", "MinimumReplicasAvailable", "MinimumReplicasUnavailable", "Other"),
			Status: choose("True", "False"),
		},
	}
	in.Deployment = d
	in.ReplicaSets = []events.ObservedWorkloadRevision{{Revision: 1, TemplateHash: "h"}}
	for range pick(3) {
		p := events.ObservedPod{
			PodTemplateHash: choose("h", "", "o"),
			Containers: []events.ContainerState{
				{
					State:    events.ContainerStatus(choose("waiting", "running")),
					Reason:   choose("", "CrashLoopBackOff", "ErrImagePull"),
					ExitCode: pick(256),
					Ready:    pick(2) == 1, RestartCount: pick(4),
				},
			},
			Conditions: []events.Condition{
				{Type: "PodScheduled", Reason: choose("", "Unschedulable")},
				{Type: "Ready", LastTransitionTime: new(time.Unix(int64(pick(256)), 0))},
			},
		}
		if pick(2) == 1 {
			p.Object.DeletedAt = new(time.Unix(int64(pick(256)), 0))
		}
		in.Pods = append(in.Pods, p)
	}
	return in
}
