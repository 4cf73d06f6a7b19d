package podstate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/podstate"
	"lockstep.internal/schemas/gen/events"
)

func TestExplainNamesWhatThePodWaitsFor(t *testing.T) {
	t.Parallel()
	created, since := time.Unix(100, 0), time.Unix(200, 0)
	waiting := func(reason string) []events.ContainerState {
		return []events.ContainerState{{
			Name: "main", Image: "shop:2", State: events.ContainerStatusWaiting, Reason: reason, Message: "manifest unknown",
			ExitCode: 3,
		}}
	}
	noNode := events.Condition{
		Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "0/2 nodes are available.",
	}
	transition := noNode
	transition.LastTransitionTime = &since
	const sentence = "no node of the cluster can take its pods: 0/2 nodes are available."
	for name, test := range map[string]struct {
		pod  podstate.Pod
		want *podstate.Failure
	}{
		"starting": {podstate.Pod{Containers: waiting("ContainerCreating")}, nil},
		"a missing image": {podstate.Pod{Containers: waiting("ImagePullBackOff")}, &podstate.Failure{
			Reason: "ErrImagePull", Message: "image shop:2 cannot be pulled: not found",
		}},
		"a failed container has priority": {
			podstate.Pod{Containers: waiting("CrashLoopBackOff"), Conditions: []events.Condition{noNode}},
			&podstate.Failure{
				Reason: "CrashLoopBackOff", Message: "container main keeps exiting: its command failed with exit code 3",
			},
		},
		"started again after two restarts": {
			podstate.Pod{Containers: []events.ContainerState{
				{Name: "main", State: events.ContainerStatusRunning, RestartCount: 2, ExitCode: 1},
			}},
			&podstate.Failure{
				Reason: "CrashLoopBackOff", Message: "container main keeps exiting: its command failed with exit code 1",
			},
		},
		"projects that cannot be cloned": {
			podstate.Pod{Containers: []events.ContainerState{{
				Name: "lockstep-clone", Init: true, State: events.ContainerStatusTerminated, ExitCode: 1,
				LastMessage: "clone shop: the repository asks for credentials\n",
			}}},
			&podstate.Failure{
				Reason: "CloneFailed", Message: "projects were not cloned: clone shop: the repository asks for credentials",
			},
		},
		"projects that are cloned once more": {
			podstate.Pod{Containers: []events.ContainerState{{
				Name: "lockstep-clone", Init: true, State: events.ContainerStatusRunning, ExitCode: 1, RestartCount: 1, LastMessage: "no",
			}}},
			&podstate.Failure{Reason: "CloneFailed", Message: "projects were not cloned: no"},
		},
		"a clone without a message": {
			podstate.Pod{Containers: []events.ContainerState{{
				Name: "lockstep-clone", Init: true, State: events.ContainerStatusWaiting, Reason: "CrashLoopBackOff", ExitCode: 137,
			}}},
			&podstate.Failure{
				Reason: "CloneFailed", Message: "projects were not cloned: it was killed (exit code 137, OOMKilled in most " +
					"cases): give it more memory",
			},
		},
		"projects that were cloned in the end": {
			podstate.Pod{Containers: []events.ContainerState{{
				Name: "lockstep-clone", Init: true, Ready: true, State: events.ContainerStatusTerminated, RestartCount: 1,
			}}}, nil,
		},
		"a container of people with that name": {
			podstate.Pod{Containers: []events.ContainerState{{
				Name: "lockstep-clone", State: events.ContainerStatusRunning, ExitCode: 1,
			}}}, nil,
		},
		"restarted once": {
			podstate.Pod{Containers: []events.ContainerState{
				{Name: "main", State: events.ContainerStatusRunning, RestartCount: 1, ExitCode: 1},
			}}, nil,
		},
		"no node since the transition": {
			podstate.Pod{Conditions: []events.Condition{transition}, CreatedAt: &created},
			&podstate.Failure{Reason: "Unschedulable", Message: sentence, Since: since},
		},
		"no node since the creation": {
			podstate.Pod{Conditions: []events.Condition{noNode}, CreatedAt: &created},
			&podstate.Failure{Reason: "Unschedulable", Message: sentence, Since: created},
		},
		"no node since the observation": {
			podstate.Pod{Conditions: []events.Condition{noNode}, ObservedAt: since},
			&podstate.Failure{Reason: "Unschedulable", Message: sentence, Since: since},
		},
		"not scheduled for another reason": {
			podstate.Pod{Conditions: []events.Condition{{Type: "PodScheduled", Reason: "SchedulingGated"}}}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := podstate.Explain("its pods", test.pod)
			require.Equal(t, test.want, got)
			if got != nil {
				require.Equal(t, got.Reason == "Unschedulable", got.MayPass())
			}
		})
	}
}

func TestRefusedNamesTheQuota(t *testing.T) {
	t.Parallel()
	const quota = `pods "web-x" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2`
	require.Equal(t, podstate.Failure{
		Reason: "QuotaExceeded", Message: "a quota of the cluster does not allow its pods: " + quota,
	}, podstate.Refused("its pods", "FailedCreate", quota))
	require.Equal(t, podstate.Failure{
		Reason: "FailedCreate", Message: "the cluster refuses to create its pods: a webhook said no",
	}, podstate.Refused("its pods", "FailedCreate", "a webhook\n said no"))
	require.Less(t, len(podstate.Refused("its pods", "FailedCreate", strings.Repeat("é", 5000)).Message), 400)
}

func TestOnlyRecentExitsAreACrashLoop(t *testing.T) {
	t.Parallel()
	observed := time.Date(2026, 3, 2, 10, 40, 0, 0, time.UTC)
	before := func(d time.Duration) *time.Time { return new(observed.Add(-d)) }
	const month = 30 * 24 * time.Hour
	for name, test := range map[string]struct {
		container events.ContainerState
		loops     bool
	}{
		"two exits a month ago, and one now": {events.ContainerState{
			State: events.ContainerStatusRunning, RestartCount: 3, StartedAt: before(time.Second),
			LastStartedAt: before(month), LastFinishedAt: before(2 * time.Second),
		}, false},
		"two exits a month ago, and it ends now": {events.ContainerState{
			State: events.ContainerStatusTerminated, RestartCount: 2,
			LastStartedAt: before(month), LastFinishedAt: before(time.Second),
		}, false},
		"two exits a month ago, and unready now": {events.ContainerState{
			State: events.ContainerStatusRunning, RestartCount: 2, StartedAt: before(month),
			LastStartedAt: before(month + time.Minute), LastFinishedAt: before(month),
		}, false},
		"exits now": {events.ContainerState{
			State: events.ContainerStatusRunning, RestartCount: 2, StartedAt: before(time.Second),
			LastStartedAt: before(time.Minute), LastFinishedAt: before(2 * time.Second),
		}, true},
		"ends again": {events.ContainerState{
			State: events.ContainerStatusTerminated, RestartCount: 2,
			LastStartedAt: before(time.Minute), LastFinishedAt: before(time.Second),
		}, true},
		"old exits, and the kubelet waits": {events.ContainerState{
			State: events.ContainerStatusWaiting, Reason: "CrashLoopBackOff", RestartCount: 3,
			LastStartedAt: before(month), LastFinishedAt: before(time.Second),
		}, true},
		"without times": {events.ContainerState{State: events.ContainerStatusRunning, RestartCount: 2}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := podstate.Pod{Containers: []events.ContainerState{test.container}, ObservedAt: observed}
			require.Equal(t, test.loops, podstate.Explain("its pods", pod) != nil)
			pod.Containers[0].Ready = true
			pod.Conditions = []events.Condition{{Type: "Ready", Status: "True", LastTransitionTime: &observed}}
			running := test.container.State == events.ContainerStatusRunning
			require.Equal(t, test.loops && running, podstate.Restarted(pod) != nil)
		})
	}
}
