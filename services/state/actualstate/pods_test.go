package actualstate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

func crashing() []events.ObservedPod {
	return []events.ObservedPod{pod(func(p *events.ObservedPod) { p.Containers[0].Reason = "CrashLoopBackOff" })}
}

func pod(changes ...func(p *events.ObservedPod)) events.ObservedPod {
	p := events.ObservedPod{
		Object: events.ObjectMeta{
			Namespace: "ns",
			Name:      "w-2-a",
		},
		Deployment:      "w",
		PodTemplateHash: "hash2",
		Phase:           "Pending",
		Containers: []events.ContainerState{
			{Name: "workspace", Image: "registry.example/ide:9", State: events.ContainerStatusWaiting},
		},
	}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func TestPodsThatCannotStart(t *testing.T) {
	t.Parallel()
	waiting := func(reason, message string, code int) func(p *events.ObservedPod) {
		return func(p *events.ObservedPod) {
			p.Containers[0].Reason, p.Containers[0].Message, p.Containers[0].ExitCode = reason, message, code
		}
	}
	notFound := `rpc error: code = NotFound desc = failed to pull and unpack image ` +
		`"registry.example/ide:9": registry.example/ide:9: not found`
	for name, test := range map[string]struct {
		pod             events.ObservedPod
		reason, message string
	}{
		"ErrImagePull": {
			pod(waiting("ErrImagePull", notFound, 0)),
			"ErrImagePull",
			"image registry.example/ide:9 cannot be pulled: not found",
		},
		"ImagePullBackOff": {
			pod(waiting("ImagePullBackOff", "Back-off pulling image: "+notFound, 0)),
			"ErrImagePull",
			"image registry.example/ide:9 cannot be pulled: not found",
		},
		"image that is refused": {
			pod(waiting("ErrImagePull", "unexpected status from HEAD request: 401 Unauthorized", 0)),
			"ErrImagePull", "image registry.example/ide:9 cannot be pulled: its registry asks for credentials",
		},
		"image name contains a known phrase": {
			pod(waiting("ErrImagePull", "denied/forbidden:1: strange", 0),
				func(p *events.ObservedPod) { p.Containers[0].Image = "denied/forbidden:1" }),
			"ErrImagePull", "image denied/forbidden:1 cannot be pulled: denied/forbidden:1: strange",
		},
		"image pull error without a message": {
			pod(waiting("ErrImagePull", " \n", 0)),
			"ErrImagePull",
			"image registry.example/ide:9 cannot be pulled: the cluster gave no reason",
		},
		"CrashLoopBackOff": {
			pod(waiting("CrashLoopBackOff", "back-off 5m0s", 3)),
			"CrashLoopBackOff",
			"container workspace keeps exiting: its command failed with exit code 3",
		},
		"CrashLoopBackOff by memory": {
			pod(waiting("CrashLoopBackOff", "", 137)),
			"CrashLoopBackOff",
			"container workspace keeps exiting: it was killed (exit code 137, OOMKilled in most cases): give it more memory",
		},
		"CrashLoopBackOff with exit code 0": {
			pod(waiting("CrashLoopBackOff", "", 0)),
			"CrashLoopBackOff",
			"container workspace keeps exiting: its command exited with code 0, but must keep running",
		},
		"CreateContainerError": {
			pod(waiting("CreateContainerError", "no\nroom", 0)),
			"CreateContainerError",
			"container workspace cannot be created: no room",
		},
		"CreateContainerConfigError": {
			pod(waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root", 0)),
			"CreateContainerConfigError", "container workspace cannot be created: its image runs as root, which is not allowed; use an image with another user",
		},
		"CrashLoopBackOff after RunContainerError": {
			pod(waiting("CrashLoopBackOff", "back-off 10s", 128)),
			"RunContainerError",
			"container workspace cannot be started (exit code 128)",
		},
		"RunContainerError": {
			pod(waiting("RunContainerError", "exec: nothing", 0)),
			"RunContainerError",
			"container workspace cannot be started: exec: nothing",
		},
		"init container": {
			pod(waiting("PodInitializing", "", 0), func(p *events.ObservedPod) {
				p.Containers = append([]events.ContainerState{
					{Name: "setup", Init: true, State: events.ContainerStatusWaiting, Reason: "CrashLoopBackOff", ExitCode: 1},
				}, p.Containers...)
			}), "CrashLoopBackOff", "container setup keeps exiting: its command failed with exit code 1",
		},
		"starting": {pod(waiting("ContainerCreating", "", 0)), "", ""},
		"once waiting, now running": {
			pod(waiting("CrashLoopBackOff", "", 1),
				func(p *events.ObservedPod) { p.Containers[0].State = events.ContainerStatusRunning }),
			"",
			"",
		},
		"of an old ReplicaSet": {
			pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.PodTemplateHash = "hash1" }),
			"",
			"",
		},
		"of no ReplicaSet": {
			pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.PodTemplateHash = "" }),
			"",
			"",
		},
		"of another Deployment": {
			pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.Deployment = "other" }),
			"",
			"",
		},
		"of another namespace": {
			pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.Object.Namespace = "other" }),
			"",
			"",
		},
		"being deleted on a lost node": {
			pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.Object.DeletedAt = &time.Time{} }),
			"",
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := actualstate.Input{
				Deployment:  shape{1, 0, 1, complete, unavailable}.deployment(),
				ReplicaSets: replicaSets(),
				Pods:        []events.ObservedPod{test.pod},
			}
			got := actualstate.Compute(in)
			if test.reason == "" {
				require.Equal(t, actualstate.Result{State: actualstate.Starting}, got)
				return
			}
			require.Equal(t, actualstate.Result{State: actualstate.Failed, Reason: test.reason, Message: test.message}, got)

			in.Pods = []events.ObservedPod{
				pod(func(p *events.ObservedPod) { p.Containers[0].State = events.ContainerStatusRunning }),
			}
			in.Deployment = shape{1, 1, 0, complete, minimum}.deployment()
			require.Equal(t, actualstate.Running, actualstate.Compute(in).State, "the pod recovered")
		})
	}
}

// TestCrashLoopIsOneFailure has the statuses that kubelets report of a container that exits again and again, without a
// readiness probe and with one, and that recovers at last.
func TestCrashLoopIsOneFailure(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const running, terminated, waiting = events.ContainerStatusRunning, events.ContainerStatusTerminated,
		events.ContainerStatusWaiting
	type status struct {
		state    events.ContainerStatus
		reason   string
		restarts int
	}
	loop := []status{
		{running, "", 0},
		{terminated, "Error", 0},
		{running, "", 1},
		{terminated, "Error", 1},
		{waiting, "CrashLoopBackOff", 1},
		{running, "", 2},
		{terminated, "Error", 2},
		{waiting, "CrashLoopBackOff", 2},
		{running, "", 3},
		{waiting, "CrashLoopBackOff", 3},
		{running, "", 4},
	}
	for name, readyAtOnce := range map[string]bool{"without a readiness probe": true, "never ready": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []actualstate.Result
			compute := func(s status, ready bool, clock time.Time) actualstate.Result {
				deployment := shape{1, 0, 1, complete, unavailable}
				if ready {
					deployment = shape{1, 1, 0, complete, minimum}
				}
				return actualstate.Compute(actualstate.Input{
					Deployment: deployment.deployment(), ReplicaSets: replicaSets(), Clock: clock,
					Pods: []events.ObservedPod{pod(func(p *events.ObservedPod) {
						p.Containers[0].State, p.Containers[0].Reason, p.Containers[0].RestartCount = s.state, s.reason, s.restarts
						p.Containers[0].Ready, p.Containers[0].ExitCode = ready, min(s.restarts, 1)
						p.Conditions = []events.Condition{{Type: "Ready", Status: "True", LastTransitionTime: &since}}
					})},
				})
			}
			for _, s := range loop {
				r := compute(s, readyAtOnce && s.state == running, since.Add(time.Second))
				r.RecomputeAt = time.Time{}
				if len(got) == 0 || got[len(got)-1] != r {
					got = append(got, r)
				}
			}
			for len(got) > 0 && got[0].State != actualstate.Failed {
				got = got[1:]
			}
			require.Equal(t, []actualstate.Result{{
				State: actualstate.Failed, Reason: "CrashLoopBackOff",
				Message: "container workspace keeps exiting: its command failed with exit code 1",
			}}, got)

			last := loop[len(loop)-1]
			recovering := compute(last, true, since.Add(9*time.Second))
			require.Equal(t, actualstate.Failed, recovering.State)
			require.Equal(t, since.Add(10*time.Second), recovering.RecomputeAt)
			require.Equal(t, actualstate.Result{State: actualstate.Running}, compute(last, true, recovering.RecomputeAt))
		})
	}
}

func TestLongMessageIsTruncated(t *testing.T) {
	t.Parallel()
	in := actualstate.Input{
		Deployment:  shape{1, 0, 1, complete, unavailable}.deployment(),
		ReplicaSets: replicaSets(),
		Pods:        crashing(),
	}
	in.Pods[0].Containers[0].Reason, in.Pods[0].Containers[0].Message = "RunContainerError", strings.Repeat("é", 1000)
	message := actualstate.Compute(in).Message
	require.Less(t, len(message), 400)
	require.True(t, strings.HasSuffix(message, "é…"), message)
}

func TestPodTimeoutsUseTheAgentClock(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	timeout := actualstate.Timeouts{Unschedulable: 5 * time.Minute, PodTermination: 2 * time.Minute}
	unschedulable := func(p *events.ObservedPod) {
		p.Conditions = []events.Condition{
			{
				Type:               "PodScheduled",
				Status:             "True",
				Reason:             "Unschedulable",
				Message:            "0/3 nodes are available: 3 Insufficient memory.",
				LastTransitionTime: &since,
			},
		}
	}
	unbound := func(p *events.ObservedPod) {
		p.Conditions[0].Message = "pod has unbound immediate PersistentVolumeClaims."
	}
	noNode := actualstate.Result{
		State:   actualstate.Failed,
		Reason:  "Unschedulable",
		Message: "no node of the cluster can take the workspace: 0/3 nodes are available: 3 Insufficient memory.",
	}
	waits := func(until time.Time) actualstate.Result {
		return actualstate.Result{
			State: actualstate.Starting, Reason: noNode.Reason, Message: noNode.Message, RecomputeAt: until,
		}
	}
	stuck := actualstate.Result{
		State:  actualstate.Failed,
		Reason: "PodNotEnding",
		Message: "the workspace was asked to stop, but pod w-2-a has been terminating since 2026-01-02T03:04:05Z; " +
			"its volume may not unmount, or its node node-1 may be lost",
	}
	starting, stopped := shape{1, 0, 1, updating, unavailable}, shape{0, 0, 0, complete, minimum}
	terminating := func(p *events.ObservedPod) { p.Object.DeletedAt, p.Node = &since, "node-1" }
	for name, test := range map[string]struct {
		deployment shape
		pods       []events.ObservedPod
		clock      time.Time
		want       actualstate.Result
	}{
		"unschedulable, within the limit": {
			starting,
			[]events.ObservedPod{pod(unschedulable)},
			since.Add(5*time.Minute - 1),
			waits(since.Add(5 * time.Minute)),
		},
		"the volume is not bound yet": {
			starting,
			[]events.ObservedPod{pod(unschedulable, unbound)},
			since.Add(10*time.Second - 1),
			actualstate.Result{State: actualstate.Starting, RecomputeAt: since.Add(10 * time.Second)},
		},
		"the volume is not bound for a while": {
			starting,
			[]events.ObservedPod{pod(unschedulable, unbound)},
			since.Add(10 * time.Second),
			actualstate.Result{
				State: actualstate.Starting, Reason: "Unschedulable", RecomputeAt: since.Add(5 * time.Minute),
				Message: "no node of the cluster can take the workspace: pod has unbound immediate PersistentVolumeClaims.",
			},
		},
		"unschedulable, no clock yet": {
			starting,
			[]events.ObservedPod{pod(unschedulable)},
			time.Time{},
			waits(since.Add(5 * time.Minute)),
		},
		"unschedulable, limit passed": {
			starting,
			[]events.ObservedPod{pod(unschedulable)},
			since.Add(5 * time.Minute),
			noNode,
		},
		"unschedulable, to be stopped": {
			stopped,
			[]events.ObservedPod{pod(unschedulable)},
			since.Add(time.Hour),
			actualstate.Result{State: actualstate.Stopped},
		},
		"unschedulable, no transition time": {
			starting,
			[]events.ObservedPod{
				pod(unschedulable, func(p *events.ObservedPod) {
					p.Conditions[0].LastTransitionTime, p.Object.CreatedAt = nil,
						&since
				}),
			},
			since,
			waits(since.Add(5 * time.Minute)),
		},
		"two deadlines": {
			starting,
			[]events.ObservedPod{pod(unschedulable), pod(unschedulable, func(p *events.ObservedPod) {
				earlier := since.Add(-time.Minute)
				p.Object.Name, p.Conditions[0].LastTransitionTime = "w-2-b", &earlier
			})},
			since,
			waits(since.Add(4 * time.Minute)),
		},
		"stopping, within the limit": {
			stopped,
			[]events.ObservedPod{pod(terminating)},
			since.Add(2*time.Minute - 1),
			actualstate.Result{State: actualstate.Stopped, RecomputeAt: since.Add(2 * time.Minute)},
		},
		"stop stuck": {
			stopped,
			[]events.ObservedPod{pod(terminating)},
			since.Add(2 * time.Minute),
			stuck,
		},
		"stop stuck, an old ReplicaSet's pod": {
			shape{0, 0, 0, updating, unavailable},
			[]events.ObservedPod{pod(terminating, func(p *events.ObservedPod) { p.PodTemplateHash = "hash1" })},
			since.Add(time.Hour),
			stuck,
		},
		"stopping, the pod is not deleted yet": {
			shape{0, 1, 0, complete, minimum},
			[]events.ObservedPod{pod()},
			since.Add(time.Hour),
			actualstate.Result{State: actualstate.Stopping},
		},
		"a pod terminates, to be running": {
			shape{1, 1, 0, complete, minimum},
			[]events.ObservedPod{pod(terminating)},
			since.Add(time.Hour),
			actualstate.Result{State: actualstate.Running},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, actualstate.Compute(actualstate.Input{
				Deployment:  test.deployment.deployment(),
				ReplicaSets: replicaSets(),
				Pods:        test.pods,
				Clock:       test.clock,
				Timeouts:    timeout,
			}))
		})
	}
}

func TestTimeoutZeroNeverExpires(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	noNode := "no node of the cluster can take the workspace: the cluster gave no reason"
	for want, test := range map[actualstate.Result]struct {
		deployment shape
		pod        events.ObservedPod
	}{
		{State: actualstate.Starting, Reason: "Unschedulable", Message: noNode}: {
			shape{1, 0, 1, updating, unavailable},
			pod(func(p *events.ObservedPod) {
				p.Conditions = []events.Condition{{Type: "PodScheduled", Reason: "Unschedulable", LastTransitionTime: &since}}
			}),
		},
		{State: actualstate.Stopped}: {
			shape{0, 0, 0, complete, minimum},
			pod(func(p *events.ObservedPod) { p.Object.DeletedAt = &since }),
		},
	} {
		require.Equal(t, want, actualstate.Compute(actualstate.Input{
			Deployment:  test.deployment.deployment(),
			ReplicaSets: replicaSets(),
			Pods:        []events.ObservedPod{test.pod},
			Clock:       since.Add(1000 * time.Hour),
		}))
	}
}
