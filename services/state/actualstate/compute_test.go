package actualstate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// shape is a Deployment in short.
type shape struct {
	spec, available, unavailable int
	progressing, availability    string
}

func (s shape) deployment() *events.ObservedDeployment {
	return &events.ObservedDeployment{
		Object:       events.ObjectMeta{Namespace: "ns", Name: "w"},
		SpecReplicas: &s.spec, HasStatus: true, ObservedGeneration: 2, Revision: 2,
		AvailableReplicas: s.available, UnavailableReplicas: s.unavailable,
		Conditions: []events.Condition{
			// The status says the contrary of what is meant: only the reason counts.
			{Type: "Available", Status: "False", Reason: s.availability},
			{Type: "Progressing", Status: "Unknown", Reason: s.progressing},
		},
	}
}

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

func replicaSets() []events.ObservedReplicaSet {
	return []events.ObservedReplicaSet{
		{Object: events.ObjectMeta{Namespace: "ns", Name: "w-hash1"}, Deployment: "w", Revision: 1, PodTemplateHash: "hash1"},
		{Object: events.ObjectMeta{Namespace: "ns", Name: "w-hash2"}, Deployment: "w", Revision: 2, PodTemplateHash: "hash2"},
	}
}

const (
	complete = "NewReplicaSetAvailable"
	updating = "ReplicaSetUpdated"
	minimum  = "MinimumReplicasAvailable"
	below    = "MinimumReplicasUnavailable"
)

func TestEveryRowOfTheTable(t *testing.T) {
	t.Parallel()
	failed := &actualstate.ApplyError{Revision: 3, Reason: "Forbidden", Message: "the cluster forbids it"}
	running := shape{1, 1, 0, complete, minimum}
	without := func(change func(d *events.ObservedDeployment)) *events.ObservedDeployment {
		d := running.deployment()
		change(d)
		return d
	}
	for name, test := range map[string]struct {
		in     actualstate.Input
		state  actualstate.State
		reason string
	}{
		"1 termination finished": {actualstate.Input{Termination: actualstate.TerminationFinished}, actualstate.Terminated, ""},
		"1 beats an apply error": {
			actualstate.Input{Termination: actualstate.TerminationFinished, ApplyError: failed, Deployment: running.deployment()}, actualstate.Terminated, "",
		},
		"2 an apply error":                  {actualstate.Input{ApplyError: failed}, actualstate.Error, "Forbidden"},
		"2 beats a termination in progress": {actualstate.Input{ApplyError: failed, Termination: actualstate.TerminationInProgress}, actualstate.Error, "Forbidden"},
		"2 beats a running Deployment":      {actualstate.Input{ApplyError: failed, Deployment: running.deployment()}, actualstate.Error, "Forbidden"},
		"2 without words still has them":    {actualstate.Input{ApplyError: &actualstate.ApplyError{}}, actualstate.Error, "ApplyFailed"},
		"3 termination in progress":         {actualstate.Input{Termination: actualstate.TerminationInProgress}, actualstate.Terminating, ""},
		"3 beats a running Deployment":      {actualstate.Input{Termination: actualstate.TerminationInProgress, Deployment: running.deployment()}, actualstate.Terminating, ""},
		"4 no Deployment":                   {actualstate.Input{Termination: actualstate.TerminationNone}, actualstate.Unknown, "NotReported"},
		"4 no spec.replicas":                {actualstate.Input{Deployment: without(func(d *events.ObservedDeployment) { d.SpecReplicas = nil })}, actualstate.Unknown, "Incomplete"},
		"4 no status":                       {actualstate.Input{Deployment: without(func(d *events.ObservedDeployment) { d.HasStatus = false })}, actualstate.Unknown, "Incomplete"},
		"4 no conditions":                   {actualstate.Input{Deployment: without(func(d *events.ObservedDeployment) { d.Conditions = nil })}, actualstate.Unknown, "Incomplete"},
		"beyond: not looked at yet": {actualstate.Input{Deployment: without(func(d *events.ObservedDeployment) {
			d.ObservedGeneration, d.Conditions, d.HasStatus = 0, nil, false
		})}, actualstate.Starting, ""},
		"beyond: not looked at yet, to be stopped": {actualstate.Input{Deployment: without(func(d *events.ObservedDeployment) {
			none := 0
			d.ObservedGeneration, d.Conditions, d.SpecReplicas = 0, nil, &none
		})}, actualstate.Unknown, "Incomplete"},
		"4 no Progressing":                      {actualstate.Input{Deployment: without(func(d *events.ObservedDeployment) { d.Conditions = d.Conditions[:1] })}, actualstate.Unknown, "Incomplete"},
		"4 Progressing without reason":          {actualstate.Input{Deployment: shape{1, 1, 0, "", minimum}.deployment()}, actualstate.Unknown, "Incomplete"},
		"5 deadline exceeded":                   {actualstate.Input{Deployment: shape{1, 0, 1, "ProgressDeadlineExceeded", below}.deployment()}, actualstate.Failed, "ProgressDeadlineExceeded"},
		"5 deadline exceeded, all available":    {actualstate.Input{Deployment: shape{1, 1, 0, "ProgressDeadlineExceeded", minimum}.deployment()}, actualstate.Failed, "ProgressDeadlineExceeded"},
		"6 created, 1":                          {actualstate.Input{Deployment: shape{1, 0, 1, "NewReplicaSetCreated", below}.deployment()}, actualstate.Starting, ""},
		"6 found, 1":                            {actualstate.Input{Deployment: shape{1, 0, 1, "FoundNewReplicaSet", below}.deployment()}, actualstate.Starting, ""},
		"6 updated, 1, though all is available": {actualstate.Input{Deployment: shape{1, 1, 0, updating, minimum}.deployment()}, actualstate.Starting, ""},
		"6 updated, 1, Available missing":       {actualstate.Input{Deployment: shape{1, 0, 0, updating, ""}.deployment()}, actualstate.Starting, ""},
		"6 created, 0":                          {actualstate.Input{Deployment: shape{0, 0, 0, "NewReplicaSetCreated", below}.deployment()}, actualstate.Stopping, ""},
		"6 found, 0":                            {actualstate.Input{Deployment: shape{0, 1, 0, "FoundNewReplicaSet", minimum}.deployment()}, actualstate.Stopping, ""},
		"6 updated, 0":                          {actualstate.Input{Deployment: shape{0, 1, 0, updating, minimum}.deployment()}, actualstate.Stopping, ""},
		"6 not with 2 replicas":                 {actualstate.Input{Deployment: shape{2, 1, 1, updating, minimum}.deployment()}, actualstate.Unknown, "Unrecognized"},
		"7 Available without reason":            {actualstate.Input{Deployment: shape{1, 1, 0, complete, ""}.deployment()}, actualstate.Unknown, "Incomplete"},
		"7 no Available":                        {actualstate.Input{Deployment: without(func(d *events.ObservedDeployment) { d.Conditions = d.Conditions[1:] })}, actualstate.Unknown, "Incomplete"},
		"8 stopped":                             {actualstate.Input{Deployment: shape{0, 0, 0, complete, minimum}.deployment()}, actualstate.Stopped, ""},
		"8 stopped, something unavailable":      {actualstate.Input{Deployment: shape{0, 0, 1, complete, minimum}.deployment()}, actualstate.Stopped, ""},
		"9 running":                             {actualstate.Input{Deployment: running.deployment()}, actualstate.Running, ""},
		"9 running, two of two":                 {actualstate.Input{Deployment: shape{2, 2, 0, complete, minimum}.deployment()}, actualstate.Running, ""},
		"10 stopping":                           {actualstate.Input{Deployment: shape{0, 1, 0, complete, minimum}.deployment()}, actualstate.Stopping, ""},
		"11 starting, available":                {actualstate.Input{Deployment: shape{1, 0, 1, complete, minimum}.deployment()}, actualstate.Starting, ""},
		"11 starting, unavailable":              {actualstate.Input{Deployment: shape{1, 0, 0, complete, below}.deployment()}, actualstate.Starting, ""},
		"12 running with one unavailable":       {actualstate.Input{Deployment: shape{1, 1, 1, complete, minimum}.deployment()}, actualstate.Unknown, "Unrecognized"},
		"12 available but not minimally":        {actualstate.Input{Deployment: shape{1, 1, 0, complete, below}.deployment()}, actualstate.Unknown, "Unrecognized"},
		"12 stopped but not minimally":          {actualstate.Input{Deployment: shape{0, 0, 0, complete, below}.deployment()}, actualstate.Unknown, "Unrecognized"},
		"12 two of none available":              {actualstate.Input{Deployment: shape{0, 2, 0, complete, minimum}.deployment()}, actualstate.Unknown, "Unrecognized"},
		"12 another progress":                   {actualstate.Input{Deployment: shape{1, 1, 0, "DeploymentPaused", minimum}.deployment()}, actualstate.Unknown, "Unrecognized"},
		"12 another availability":               {actualstate.Input{Deployment: shape{1, 1, 0, complete, "Other"}.deployment()}, actualstate.Unknown, "Unrecognized"},
		"beyond: crash-looping though complete": {actualstate.Input{Deployment: shape{1, 0, 1, complete, below}.deployment(), ReplicaSets: replicaSets(), Pods: crashing()}, actualstate.Failed, "CrashLoopBackOff"},
		"beyond: before row 6":                  {actualstate.Input{Deployment: shape{1, 0, 1, updating, below}.deployment(), ReplicaSets: replicaSets(), Pods: crashing()}, actualstate.Failed, "CrashLoopBackOff"},
		"beyond: before row 7":                  {actualstate.Input{Deployment: shape{1, 0, 1, complete, ""}.deployment(), ReplicaSets: replicaSets(), Pods: crashing()}, actualstate.Failed, "CrashLoopBackOff"},
		"beyond: after row 4":                   {actualstate.Input{Deployment: without(func(d *events.ObservedDeployment) { d.HasStatus = false }), ReplicaSets: replicaSets(), Pods: crashing()}, actualstate.Unknown, "Incomplete"},
		"beyond: says why the deadline passed":  {actualstate.Input{Deployment: shape{1, 0, 1, "ProgressDeadlineExceeded", below}.deployment(), ReplicaSets: replicaSets(), Pods: crashing()}, actualstate.Failed, "CrashLoopBackOff"},
		"beyond: not while it shall be stopped": {actualstate.Input{Deployment: shape{0, 0, 0, complete, minimum}.deployment(), ReplicaSets: replicaSets(), Pods: crashing()}, actualstate.Stopped, ""},
		"beyond: not without the ReplicaSet":    {actualstate.Input{Deployment: shape{1, 0, 1, complete, below}.deployment(), ReplicaSets: replicaSets()[:1], Pods: crashing()}, actualstate.Starting, ""},
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

func TestPodsThatCannotStart(t *testing.T) {
	t.Parallel()
	waiting := func(reason, message string, code int) func(p *events.ObservedPod) {
		return func(p *events.ObservedPod) {
			p.Containers[0].Reason, p.Containers[0].Message, p.Containers[0].ExitCode = reason, message, code
		}
	}
	notFound := `rpc error: code = NotFound desc = failed to pull and unpack image "registry.example/ide:9": registry.example/ide:9: not found`
	for name, test := range map[string]struct {
		pod             events.ObservedPod
		reason, message string
	}{
		"ErrImagePull":     {pod(waiting("ErrImagePull", notFound, 0)), "ErrImagePull", "image registry.example/ide:9 cannot be pulled: not found"},
		"ImagePullBackOff": {pod(waiting("ImagePullBackOff", "Back-off pulling image: "+notFound, 0)), "ErrImagePull", "image registry.example/ide:9 cannot be pulled: not found"},
		"image that is refused": {
			pod(waiting("ErrImagePull", "unexpected status from HEAD request: 401 Unauthorized", 0)),
			"ErrImagePull", "image registry.example/ide:9 cannot be pulled: its registry asks for credentials",
		},
		"image whose name misleads": {
			pod(waiting("ErrImagePull", "denied/forbidden:1: strange", 0), func(p *events.ObservedPod) { p.Containers[0].Image = "denied/forbidden:1" }),
			"ErrImagePull", "image denied/forbidden:1 cannot be pulled: denied/forbidden:1: strange",
		},
		"image without words":        {pod(waiting("ErrImagePull", " \n", 0)), "ErrImagePull", "image registry.example/ide:9 cannot be pulled: the cluster did not say why"},
		"CrashLoopBackOff":           {pod(waiting("CrashLoopBackOff", "back-off 5m0s", 3)), "CrashLoopBackOff", "container workspace keeps ending: its command failed with exit code 3"},
		"CrashLoopBackOff by memory": {pod(waiting("CrashLoopBackOff", "", 137)), "CrashLoopBackOff", "container workspace keeps ending: it was killed (exit code 137, OOMKilled in most cases): give it more memory"},
		"CrashLoopBackOff by an end": {pod(waiting("CrashLoopBackOff", "", 0)), "CrashLoopBackOff", "container workspace keeps ending: its command ended without an error (exit code 0), but has to keep running"},
		"CreateContainerError":       {pod(waiting("CreateContainerError", "no\nroom", 0)), "CreateContainerError", "container workspace cannot be created: no room"},
		"CreateContainerConfigError": {
			pod(waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root", 0)),
			"CreateContainerConfigError", "container workspace cannot be created: its image runs as root, which is not allowed; use an image with another user",
		},
		"RunContainerError": {pod(waiting("RunContainerError", "exec: nothing", 0)), "RunContainerError", "container workspace cannot be started: exec: nothing"},
		"init container": {
			pod(waiting("PodInitializing", "", 0), func(p *events.ObservedPod) {
				p.Containers = append([]events.ContainerState{{Name: "setup", Init: true, State: events.ContainerStatusWaiting, Reason: "CrashLoopBackOff", ExitCode: 1}}, p.Containers...)
			}), "CrashLoopBackOff", "container setup keeps ending: its command failed with exit code 1",
		},
		"starting":                     {pod(waiting("ContainerCreating", "", 0)), "", ""},
		"once waiting, now running":    {pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.Containers[0].State = events.ContainerStatusRunning }), "", ""},
		"of an old ReplicaSet":         {pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.PodTemplateHash = "hash1" }), "", ""},
		"of no ReplicaSet":             {pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.PodTemplateHash = "" }), "", ""},
		"of another Deployment":        {pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.Deployment = "other" }), "", ""},
		"of another namespace":         {pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.Object.Namespace = "other" }), "", ""},
		"being deleted on a lost node": {pod(waiting("CrashLoopBackOff", "", 1), func(p *events.ObservedPod) { p.Object.DeletedAt = &time.Time{} }), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := actualstate.Input{
				Deployment:  shape{1, 0, 1, complete, below}.deployment(),
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

func TestLongMessageIsTruncated(t *testing.T) {
	t.Parallel()
	in := actualstate.Input{
		Deployment:  shape{1, 0, 1, complete, below}.deployment(),
		ReplicaSets: replicaSets(),
		Pods:        crashing(),
	}
	in.Pods[0].Containers[0].Reason, in.Pods[0].Containers[0].Message = "RunContainerError", strings.Repeat("é", 1000)
	message := actualstate.Compute(in).Message
	require.Less(t, len(message), 400)
	require.True(t, strings.HasSuffix(message, "é…"), message)
}

func TestPatienceIsMeasuredByTheAgentsClock(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	patience := actualstate.Patience{Unschedulable: 5 * time.Minute, Stop: 2 * time.Minute}
	homeless := func(p *events.ObservedPod) {
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
	starting, stopped := shape{1, 0, 1, updating, below}, shape{0, 0, 0, complete, minimum}
	leaving := func(p *events.ObservedPod) { p.Object.DeletedAt, p.Node = &since, "node-1" }
	for name, test := range map[string]struct {
		deployment shape
		pods       []events.ObservedPod
		clock      time.Time
		want       actualstate.Result
	}{
		"no node, in patience":      {starting, []events.ObservedPod{pod(homeless)}, since.Add(5*time.Minute - 1), actualstate.Result{State: actualstate.Starting, Until: since.Add(5 * time.Minute)}},
		"no node, no clock yet":     {starting, []events.ObservedPod{pod(homeless)}, time.Time{}, actualstate.Result{State: actualstate.Starting, Until: since.Add(5 * time.Minute)}},
		"no node, past patience":    {starting, []events.ObservedPod{pod(homeless)}, since.Add(5 * time.Minute), actualstate.Result{State: actualstate.Failed, Reason: "Unschedulable", Message: "no node of the cluster can take the workspace: 0/3 nodes are available: 3 Insufficient memory."}},
		"no node, shall be stopped": {stopped, []events.ObservedPod{pod(homeless)}, since.Add(time.Hour), actualstate.Result{State: actualstate.Stopped}},
		"no node and no time of it": {
			starting,
			[]events.ObservedPod{pod(homeless, func(p *events.ObservedPod) { p.Conditions[0].LastTransitionTime, p.Object.CreatedAt = nil, &since })},
			since,
			actualstate.Result{State: actualstate.Starting, Until: since.Add(5 * time.Minute)},
		},
		"two deadlines": {
			starting,
			[]events.ObservedPod{pod(homeless), pod(homeless, func(p *events.ObservedPod) {
				earlier := since.Add(-time.Minute)
				p.Object.Name, p.Conditions[0].LastTransitionTime = "w-2-b", &earlier
			})},
			since,
			actualstate.Result{State: actualstate.Starting, Until: since.Add(4 * time.Minute)},
		},
		"stopping, in patience": {stopped, []events.ObservedPod{pod(leaving)}, since.Add(2*time.Minute - 1), actualstate.Result{State: actualstate.Stopped, Until: since.Add(2 * time.Minute)}},
		"stop stuck": {
			stopped,
			[]events.ObservedPod{pod(leaving)},
			since.Add(2 * time.Minute),
			actualstate.Result{State: actualstate.Failed, Reason: "PodNotEnding", Message: "the workspace was asked to stop, but pod w-2-a has not ended since 2026-01-02T03:04:05Z; its volume may not unmount, or its node node-1 may be lost"},
		},
		"stop stuck, an old ReplicaSet's pod": {
			shape{0, 0, 0, updating, below},
			[]events.ObservedPod{pod(leaving, func(p *events.ObservedPod) { p.PodTemplateHash = "hash1" })},
			since.Add(time.Hour),
			actualstate.Result{State: actualstate.Failed, Reason: "PodNotEnding", Message: "the workspace was asked to stop, but pod w-2-a has not ended since 2026-01-02T03:04:05Z; its volume may not unmount, or its node node-1 may be lost"},
		},
		"stopping, the pod is not even asked": {shape{0, 1, 0, complete, minimum}, []events.ObservedPod{pod()}, since.Add(time.Hour), actualstate.Result{State: actualstate.Stopping}},
		"a pod leaves while it shall run":     {shape{1, 1, 0, complete, minimum}, []events.ObservedPod{pod(leaving)}, since.Add(time.Hour), actualstate.Result{State: actualstate.Running}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, actualstate.Compute(actualstate.Input{
				Deployment:  test.deployment.deployment(),
				ReplicaSets: replicaSets(),
				Pods:        test.pods,
				Clock:       test.clock,
				Patience:    patience,
			}))
		})
	}
}

func TestPatienceOfZeroNeverEnds(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, test := range map[actualstate.State]struct {
		deployment shape
		pod        events.ObservedPod
	}{
		actualstate.Starting: {shape{1, 0, 1, updating, below}, pod(func(p *events.ObservedPod) {
			p.Conditions = []events.Condition{{Type: "PodScheduled", Reason: "Unschedulable", LastTransitionTime: &since}}
		})},
		actualstate.Stopped: {shape{0, 0, 0, complete, minimum}, pod(func(p *events.ObservedPod) { p.Object.DeletedAt = &since })},
	} {
		require.Equal(t, actualstate.Result{State: want}, actualstate.Compute(actualstate.Input{
			Deployment:  test.deployment.deployment(),
			ReplicaSets: replicaSets(),
			Pods:        []events.ObservedPod{test.pod},
			Clock:       since.Add(1000 * time.Hour),
		}))
	}
}

func TestReasonsOfTheProgressDeadline(t *testing.T) {
	t.Parallel()
	late := shape{1, 0, 1, "ProgressDeadlineExceeded", below}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	refused := func(message string) *events.ObservedDeployment {
		d := late.deployment()
		d.Conditions = append(
			d.Conditions,
			events.Condition{Type: "ReplicaFailure", Reason: "FailedCreate", Message: message},
		)
		return d
	}
	said := late.deployment()
	said.Conditions[1].Message = `ReplicaSet "w-hash2" has timed out progressing.`
	for name, test := range map[string]struct {
		in              actualstate.Input
		reason, message string
	}{
		"quota": {
			actualstate.Input{Deployment: refused(`pods "w" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=0, limited: cpu=1`)},
			"QuotaExceeded", `a quota of the cluster does not allow this workspace: pods "w" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=0, limited: cpu=1`,
		},
		"another refusal": {actualstate.Input{Deployment: refused("a webhook said no")}, "FailedCreate", "the cluster refuses to create the workspace's pod: a webhook said no"},
		"no node, whatever the patience": {
			actualstate.Input{
				Deployment: late.deployment(), ReplicaSets: replicaSets(), Clock: since, Patience: actualstate.Patience{Unschedulable: time.Hour},
				Pods: []events.ObservedPod{pod(func(p *events.ObservedPod) {
					p.Conditions = []events.Condition{{Type: "PodScheduled", Reason: "Unschedulable", Message: "no room", LastTransitionTime: &since}}
				})},
			}, "Unschedulable", "no node of the cluster can take the workspace: no room",
		},
		"the controller's own words": {actualstate.Input{Deployment: said}, "ProgressDeadlineExceeded", `the workspace did not become ready in time: ReplicaSet "w-hash2" has timed out progressing.`},
		"no words at all":            {actualstate.Input{Deployment: late.deployment()}, "ProgressDeadlineExceeded", "the workspace did not become ready in time"},
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
				"everything may be skipped on the way to %s",
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
