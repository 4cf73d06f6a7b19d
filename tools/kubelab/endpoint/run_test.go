package endpoint_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/tools/kubelab/endpoint"
)

func epoch() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func running() v1.ContainerState {
	return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(epoch())}}
}

func terminated(id, reason string, code int32, after time.Duration) v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		ContainerID: id, Reason: reason, ExitCode: code,
		StartedAt: metav1.NewTime(epoch()), FinishedAt: metav1.NewTime(epoch().Add(after)),
	}}
}

func waiting(reason string) v1.ContainerState {
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
}

// podWith has one container, c, in the given state; its run has the ID "now".
func podWith(state, last v1.ContainerState) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"},
		Spec: v1.PodSpec{
			NodeName:   "node-1",
			Containers: []v1.Container{{Name: "c", Image: "x:1"}, {Name: "new", Image: "x:1"}},
		},
		Status: v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{
			{Name: "c", Image: "x:1", ContainerID: "now", State: state, LastTerminationState: last},
		}},
	}
}

func TestRunOf(t *testing.T) {
	t.Parallel()
	none := v1.ContainerState{}
	tests := map[string]struct {
		state, last v1.ContainerState
		container   string
		previous    bool
		id          string
		ended       bool
		err         string
	}{
		"running": {state: running(), id: "now"},
		"ended":   {state: terminated("now", "Completed", 0, 0), id: "now", ended: true},
		"restarts": {
			state: waiting("CrashLoopBackOff"),
			last:  terminated("old", "Error", 1, 0),
			id:    "old",
			ended: true,
		},
		"waits": {
			state: waiting("ErrImagePull"),
			err:   `container "c" in pod "p" is waiting to start: ErrImagePull`,
		},
		"without a status": {container: "new", state: none, err: "is waiting to start: ContainerCreating"},
		"unknown":          {container: "other", state: running(), err: `container "other" not found in pod "p"`},
		"previous": {
			state:    running(),
			last:     terminated("old", "Error", 1, 0),
			previous: true,
			id:       "old",
			ended:    true,
		},
		"previous of the first": {
			state:    running(),
			previous: true,
			err:      `previous terminated container "c" in pod "p" not found`,
		},
		"previous of one that waited": {state: waiting("ErrImagePull"), previous: true, err: "not found"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			container := test.container
			if container == "" {
				container = "c"
			}
			run, err := endpoint.RunOf(podWith(test.state, test.last), container, test.previous)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.id, run.ID)
			require.Equal(t, test.ended, run.Ended != nil)
			require.Equal(t, epoch(), run.Started)
		})
	}
}

func TestLinesOfARun(t *testing.T) {
	t.Parallel()
	const first = "simulated container c of pod ns/p, image x:1"
	tests := map[string]struct {
		state v1.ContainerState
		after time.Duration
		texts []string
	}{
		"just started":    {running(), 0, []string{first}},
		"clock behind":    {running(), -time.Minute, []string{first}},
		"almost a second": {running(), 999 * time.Millisecond, []string{first}},
		"two seconds":     {running(), 2 * time.Second, []string{first, "line 1", "line 2"}},
		"ended long ago": {
			terminated("now", "Error", 1, 1500*time.Millisecond),
			time.Hour,
			[]string{first, "line 1", "exit code 1"},
		},
		"ended at once": {terminated("now", "Completed", 0, 0), time.Hour, []string{first, "exit code 0"}},
		"OOM-killed container logs no exit code": {
			terminated("now", "OOMKilled", 137, time.Second),
			time.Hour,
			[]string{first, "line 1"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run, err := endpoint.RunOf(podWith(test.state, v1.ContainerState{}), "c", false)
			require.NoError(t, err)
			var texts []string
			before := epoch()
			for i := range run.Count(epoch().Add(test.after)) {
				line := run.Line(i)
				require.False(t, line.Time.Before(before), "lines are in order")
				before = line.Time
				texts = append(texts, line.Text)
			}
			require.Equal(t, test.texts, texts)
		})
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		command []string
		code    int
		exits   bool
	}{
		"plain":        {[]string{"exit", "3"}, 3, true},
		"zero":         {[]string{"exit", "0"}, 0, true},
		"shell":        {[]string{"sh", "-c", " exit  255 "}, 255, true},
		"other shell":  {[]string{"/bin/bash", "-c", "exit 7"}, 7, true},
		"too large":    {[]string{"exit", "256"}, 0, false},
		"negative":     {[]string{"exit", "-1"}, 0, false},
		"no number":    {[]string{"exit", "now"}, 0, false},
		"no code":      {[]string{"exit"}, 0, false},
		"more follows": {[]string{"sh", "-c", "exit 3; ls"}, 0, false},
		"other":        {[]string{"cat"}, 0, false},
		"nothing":      {nil, 0, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, exits := endpoint.ExitCode(test.command)
			require.Equal(t, test.exits, exits)
			if exits {
				require.Equal(t, test.code, code)
			}
		})
	}
}

func FuzzExitCode(f *testing.F) {
	f.Add("exit", "3", "")
	f.Add("sh", "-c", "exit 3")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		for _, command := range [][]string{{a}, {a, b}, {a, b, c}} {
			if code, exits := endpoint.ExitCode(command); exits {
				require.GreaterOrEqual(t, code, 0)
				require.LessOrEqual(t, code, 255)
			}
		}
	})
}
