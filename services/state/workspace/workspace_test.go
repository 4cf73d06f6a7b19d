package workspace_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

func TestNewWorkspace(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	require.Equal(t, "ws-7-ide", w.Namespace)
	require.Equal(t, workspace.DesiredRunning, w.DesiredState)
	require.Equal(t, actualstate.CreationRequested, w.ActualState)
	require.EqualValues(t, 1, w.DesiredRevision)
	require.Equal(
		t,
		workspace.Spec{Image: "registry.example/ide:9", CPU: "500m", Memory: "1Gi", VolumeSize: "10Gi"},
		w.Spec,
	)
	changes := w.events
	require.Len(t, changes, 1)
	require.Equal(t, w.ID.String()+"/created", changes[0].ID)
}

func TestSetDesired(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ from, ask, want workspace.DesiredState }{
		{workspace.DesiredRunning, workspace.DesiredRunning, workspace.DesiredRunning},
		{workspace.DesiredRunning, workspace.DesiredStopped, workspace.DesiredStopped},
		{workspace.DesiredRunning, workspace.DesiredTerminated, workspace.DesiredTerminated},
		{workspace.DesiredRunning, workspace.DesiredRestartRequested, workspace.DesiredRestartRequested},
		{workspace.DesiredStopped, workspace.DesiredRunning, workspace.DesiredRunning},
		{workspace.DesiredStopped, workspace.DesiredStopped, workspace.DesiredStopped},
		{workspace.DesiredStopped, workspace.DesiredTerminated, workspace.DesiredTerminated},
		{workspace.DesiredStopped, workspace.DesiredRestartRequested, workspace.DesiredRunning},
		{workspace.DesiredRestartRequested, workspace.DesiredRunning, workspace.DesiredRunning},
		{workspace.DesiredRestartRequested, workspace.DesiredStopped, workspace.DesiredStopped},
		{workspace.DesiredRestartRequested, workspace.DesiredTerminated, workspace.DesiredTerminated},
		{workspace.DesiredRestartRequested, workspace.DesiredRestartRequested, workspace.DesiredRestartRequested},
		{workspace.DesiredTerminated, workspace.DesiredTerminated, workspace.DesiredTerminated},
	} {
		t.Run(string(test.from)+" to "+string(test.ask), func(t *testing.T) {
			t.Parallel()
			before := newFixture(t, func(w *workspace.Workspace) { w.DesiredState = test.from })
			after, err := before.SetDesired(test.ask, 11, start().Add(time.Hour))
			require.NoError(t, err)
			require.Equal(t, test.want, after.DesiredState)
			if test.from == test.ask {
				require.Equal(t, before.Workspace, after.Workspace, "no change, no revision")
				require.Empty(t, after.events)
				return
			}
			require.Equal(t, before.DesiredRevision+1, after.DesiredRevision)
			changes := after.events
			require.Len(t, changes, 1)
			user := events.DesiredStateCauseUser
			require.Equal(t, events.WorkspaceDesiredStateChanged{
				WorkspaceID:     after.ID.String(),
				Name:            "ide",
				ProjectID:       4,
				AgentID:         7,
				From:            events.DesiredState(test.from),
				To:              events.DesiredState(test.want),
				DesiredRevision: 2,
				UserID:          11,
				Cause:           &user,
			}, changes[0].Data)
		})
	}
}

func TestTerminatedIsPermanent(t *testing.T) {
	t.Parallel()
	w, err := newFixture(t).SetDesired(workspace.DesiredTerminated, 9, start())
	require.NoError(t, err)
	for _, to := range []workspace.DesiredState{workspace.DesiredRunning, workspace.DesiredStopped, workspace.DesiredRestartRequested} {
		same, err := w.SetDesired(to, 9, start())
		require.True(t, fault.Is(err, errcode.WorkspaceTerminated), to)
		require.ErrorContains(t, err, `workspace "ide" was asked to terminate, which is permanent; create another one`)
		require.Equal(t, w.Workspace, same.Workspace)
	}
	_, err = w.Update(workspace.Spec{Image: "other:1"}, 9, start())
	require.True(t, fault.Is(err, errcode.WorkspaceTerminated))
	_, err = newFixture(t).SetDesired("gone", 9, start())
	require.True(t, fault.Is(err, errcode.InvalidArgument))
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	before := newFixture(t)
	same, err := before.Update(
		workspace.Spec{Image: before.Spec.Image, Env: map[string]string{}, Command: []string{}, Args: []string{}},
		9,
		start(),
	)
	require.NoError(t, err)
	require.Equal(t, before.Workspace, same.Workspace)
	after, err := before.Update(workspace.Spec{Image: "other:1", VolumeSize: "20Gi"}, 9, start())
	require.NoError(t, err)
	require.EqualValues(t, 2, after.DesiredRevision)
	require.Equal(t, workspace.DesiredRunning, after.DesiredState)
	_, err = after.Update(workspace.Spec{Image: "other:1", VolumeSize: "19Gi"}, 9, start())
	require.ErrorContains(t, err, `volume_size: "19Gi" is less than the current "20Gi"`)
}

func TestRestartCompletesAfterStopObserved(t *testing.T) {
	t.Parallel()
	asked := newFixture(t, func(w *workspace.Workspace) {
		w.DesiredState, w.DesiredRevision, w.AppliedRevision, w.ActualState = workspace.DesiredRestartRequested, 6, 6, actualstate.Stopping
	})
	for name, test := range map[string]struct {
		change     func(w *workspace.Workspace)
		deployment *events.ObservedDeployment
		actual     actualstate.State
	}{
		"not yet applied":                  {func(w *workspace.Workspace) { w.AppliedRevision = 5 }, deployment(0, "6"), actualstate.Stopped},
		"stopped by an earlier revision":   {nil, deployment(0, "5"), actualstate.Stopped},
		"stopped by who knows what":        {nil, deployment(0, ""), actualstate.Stopped},
		"its status is of a former spec":   {nil, func() *events.ObservedDeployment { d := deployment(0, "6"); d.Generation++; return d }(), actualstate.Stopped},
		"still running":                    {nil, deployment(1, "6"), actualstate.Running},
		"stopped, but applying fails":      {func(w *workspace.Workspace) { w.ApplyError = &actualstate.ApplyError{Revision: 6} }, deployment(0, "6"), actualstate.Error},
		"the Deployment is not there":      {nil, nil, actualstate.Unknown},
		"nobody asked for a restart":       {func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredStopped }, deployment(0, "6"), actualstate.Stopped},
		"updated since, which is on a way": {func(w *workspace.Workspace) { w.DesiredRevision = 7 }, deployment(0, "6"), actualstate.Stopped},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := asked
			if test.change != nil {
				test.change(&before.Workspace)
			}
			after := before.Observe(seen(test.deployment))
			require.Equal(t, test.actual, after.ActualState)
			require.Equal(t, before.DesiredState, after.DesiredState)
			require.Equal(t, before.DesiredRevision, after.DesiredRevision)
		})
	}
	after := asked.Observe(seen(deployment(0, "6")))
	require.Equal(t, workspace.DesiredRunning, after.DesiredState)
	require.EqualValues(t, 7, after.DesiredRevision)
	changes := after.events
	require.Len(t, changes, 2)
	require.Equal(t, events.ActualStateStopped, changes[0].Data.(events.WorkspaceStateChanged).To)
	told := changes[1].Data.(events.WorkspaceDesiredStateChanged)
	require.Equal(t, events.DesiredStateCauseRestartCompleted, *told.Cause)
	require.Zero(t, told.UserID)
	again := after.Observe(seen(deployment(0, "6")))
	require.Equal(t, after.Workspace, again.Workspace, "once")
}

func TestObserve(t *testing.T) {
	t.Parallel()
	before := newFixture(t)
	before.ReconsiderAt = time.Time{}
	require.Equal(
		t,
		before.Workspace,
		before.Observe(workspace.Observation{}).Workspace,
		"nothing heard yet is no reason to doubt",
	)
	running := before.Observe(seen(deployment(1, "1")))
	require.Equal(t, actualstate.Running, running.ActualState)
	require.Equal(t, start().Add(time.Minute), running.ActualStateChangedAt)
	require.EqualValues(t, 1, running.ActualStateRevision)
	require.Equal(t, running.Workspace, running.Observe(seen(deployment(1, "1"))).Workspace, "no news")
	require.Equal(t, actualstate.Unknown, running.Observe(seen(nil)).ActualState)

	failed := running.ApplyFailed(actualstate.ApplyError{Revision: 1, Reason: "Forbidden", Message: "no"}, start()).
		Observe(seen(deployment(1, "1")))
	require.Equal(t, actualstate.Error, failed.ActualState)
	otherwise := failed.ApplyFailed(actualstate.ApplyError{Revision: 1, Reason: "Forbidden", Message: "never"}, start()).
		Observe(seen(deployment(1, "1")))
	require.Equal(t, "never", otherwise.Message)
	require.Empty(t, otherwise.events, "a sentence that changes is no event")
	otherwise = otherwise.ApplyFailed(actualstate.ApplyError{Revision: 1, Reason: "Invalid", Message: "x"}, start()).
		Observe(seen(deployment(1, "1")))
	require.Len(t, otherwise.events, 1, "another reason is")
	require.Equal(t, actualstate.Running, otherwise.Applied(1, start()).Observe(seen(deployment(1, "1"))).ActualState)
}

func TestUnexpectedChangeIsStoredAndMarked(t *testing.T) {
	t.Parallel()
	before := newFixture(t, func(w *workspace.Workspace) { w.ActualState, w.ActualStateRevision = actualstate.Running, 4 })
	after := before.Observe(workspace.Observation{})
	require.Equal(t, actualstate.CreationRequested, after.ActualState)
	changes := after.events
	require.True(t, changes[0].Data.(events.WorkspaceStateChanged).Unexpected)
	require.Equal(t, before.ID.String()+"/actual/5", changes[0].ID)
}

func TestTermination(t *testing.T) {
	t.Parallel()
	asked, err := newFixture(
		t,
		func(w *workspace.Workspace) { w.AppliedRevision, w.ActualState = 1, actualstate.Running },
	).SetDesired(workspace.DesiredTerminated, 9, start())
	require.NoError(t, err)
	require.Equal(t, actualstate.Running, asked.Observe(seen(deployment(1, "1"))).ActualState, "nothing happened yet")
	leaving := deployment(1, "1")
	leaving.Object.DeletedAt = new(start())
	require.Equal(t, actualstate.Terminating, asked.Observe(seen(leaving)).ActualState, "it shows before it is said")
	require.Equal(t, actualstate.Terminating, asked.Observe(workspace.Observation{Seen: true, Gone: true}).ActualState)
	require.EqualValues(
		t,
		2,
		asked.Observe(workspace.Observation{Seen: true, Gone: true}).DesiredRevision,
		"what shall be gone is not sent again",
	)

	refused := asked.ApplyFailed(actualstate.ApplyError{Revision: 2, Reason: "Forbidden"}, start()).Observe(seen(nil))
	require.Equal(t, actualstate.Error, refused.ActualState)
	going := refused.Terminating(2, start()).Observe(seen(nil))
	require.Equal(t, actualstate.Terminating, going.ActualState)
	gone := going.Terminated(2, start()).Observe(seen(nil))
	require.Equal(t, actualstate.Terminated, gone.ActualState)
	for name, later := range map[string]fixture{
		"applied": gone.Applied(3, start()), "failed": gone.ApplyFailed(actualstate.ApplyError{Revision: 3}, start()), "terminating": gone.Terminating(3, start()),
		"observed": gone.Observe(seen(deployment(1, "3"))), "listed": gone.Observe(workspace.Observation{Seen: true, Listed: start().Add(time.Hour)}),
	} {
		require.Equal(t, gone.Workspace, later.Workspace, name)
	}

	askedAgain := going.Redispatch(start()).Terminated(2, start()).Observe(seen(nil))
	require.Equal(t, actualstate.Terminated, askedAgain.ActualState)
	require.EqualValues(t, 2, askedAgain.AppliedRevision)
	answered := askedAgain.Terminated(3, start())
	require.EqualValues(t, 3, answered.AppliedRevision, "nothing is left to be applied")
	require.Equal(t, answered.Workspace, answered.Terminated(4, start()).Workspace, "nobody asked for that")
}

// TestRepeatedTerminationEnds has a full resync find nothing, and ask again, while the first answer is under way.
func TestRepeatedTerminationEnds(t *testing.T) {
	t.Parallel()
	asked, err := newFixture(
		t,
		func(w *workspace.Workspace) { w.AppliedRevision, w.ActualState = 1, actualstate.Running },
	).SetDesired(workspace.DesiredTerminated, 9, start())
	require.NoError(t, err)
	again := asked.Observe(
		workspace.Observation{Seen: true, Listed: start().Add(time.Minute), At: start().Add(time.Minute)},
	)
	require.EqualValues(t, 3, again.DesiredRevision)
	gone := again.Terminated(2, start()).Observe(seen(nil))
	require.Equal(t, actualstate.Terminated, gone.ActualState)
	over := gone.Terminated(3, start().Add(time.Hour))
	require.EqualValues(t, 3, over.AppliedRevision)
	require.Equal(t, actualstate.Terminated, over.Observe(seen(nil)).ActualState)
	require.Equal(t, over.Workspace, over.Terminated(2, start()).Workspace, "what is older is old")
	require.Equal(t, gone.Workspace, gone.Terminated(4, start()).Workspace, "nobody is to be overtaken any more")
}

func TestReportsOfLowerRevisionsAreIgnored(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(w *workspace.Workspace) { w.DesiredRevision = 9 }).Applied(5, start())
	for name, after := range map[string]fixture{
		"applied": w.Applied(4, start()), "failed": w.ApplyFailed(actualstate.ApplyError{Revision: 4}, start()),
		"terminating": w.Terminating(4, start()), "terminated": w.Terminated(4, start()),
	} {
		require.Equal(t, w.Workspace, after.Workspace, name)
	}
	failed := w.ApplyFailed(actualstate.ApplyError{Revision: 7}, start())
	require.Equal(t, failed.Workspace, failed.Applied(6, start()).Workspace, "6 is older than the failure of 7")
	require.Nil(t, failed.Applied(7, start()).ApplyError)
	require.NotNil(
		t,
		failed.Applied(7, start()).ApplyFailed(actualstate.ApplyError{Revision: 7}, start()).ApplyError,
		"of the same revision the last word counts",
	)
}

func TestRevisionOvertakesDispatcherAheadOfDatabase(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]func(w fixture) fixture{
		"applied": func(w fixture) fixture { return w.Applied(8, start()) },
		"failed": func(w fixture) fixture {
			return w.ApplyFailed(actualstate.ApplyError{Revision: 8}, start())
		},
		"terminating": func(w fixture) fixture { return w.Terminating(8, start()) },
		"terminated":  func(w fixture) fixture { return w.Terminated(8, start()) },
	} {
		after := say(newFixture(t))
		require.EqualValues(t, 9, after.DesiredRevision, name)
		require.Equal(t, events.DesiredStateCauseRedispatch, after.cause().Kind, name)
		require.Equal(t, actualstate.TerminationNone, after.Termination, "%s: nobody here wants that", name)
	}
}

func TestLostDeploymentIsDispatchedAgain(t *testing.T) {
	t.Parallel()
	listed := start().Add(time.Hour)
	for name, test := range map[string]struct {
		change func(w *workspace.Workspace)
		o      workspace.Observation
		again  bool
	}{
		"deleted behind one's back":             {nil, workspace.Observation{Seen: true, Gone: true}, true},
		"deleted and made again at once":        {nil, workspace.Observation{Seen: true, Gone: true, Deployment: deployment(1, "1")}, false},
		"not there, as before":                  {nil, workspace.Observation{Seen: true}, false},
		"not in a whole resync":                 {nil, workspace.Observation{Seen: true, Listed: listed}, true},
		"never seen, not in a whole resync":     {nil, workspace.Observation{Listed: listed}, true},
		"applied while the resync ran":          {func(w *workspace.Workspace) { w.AppliedAt = listed }, workspace.Observation{Listed: listed}, false},
		"not applied yet":                       {func(w *workspace.Workspace) { w.DesiredRevision = 2 }, workspace.Observation{Listed: listed}, false},
		"seen since":                            {nil, workspace.Observation{Seen: true, Listed: listed, Deployment: deployment(1, "1")}, false},
		"stopped, deleted behind one's back":    {func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredStopped }, workspace.Observation{Seen: true, Gone: true}, true},
		"shall be terminated, and is not there": {func(w *workspace.Workspace) { w.DesiredState, w.DesiredRevision = workspace.DesiredTerminated, 2 }, workspace.Observation{Seen: true, Listed: listed}, true},
		"terminated while the resync ran": {
			func(w *workspace.Workspace) {
				w.DesiredState, w.DesiredRevision, w.DesiredStateChangedAt = workspace.DesiredTerminated, 2, listed
			},
			workspace.Observation{Seen: true, Listed: listed},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := newFixture(t, func(w *workspace.Workspace) { w.AppliedRevision, w.AppliedAt = 1, start() })
			if test.change != nil {
				test.change(&before.Workspace)
			}
			after := before.Observe(test.o)
			require.Equal(t, test.again, after.DesiredRevision == before.DesiredRevision+1)
			require.Equal(t, before.DesiredState, after.DesiredState)
			if test.again {
				require.Equal(t, events.DesiredStateCauseRedispatch, after.cause().Kind)
			}
		})
	}
}

func TestCreationReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, _, err := workspace.New(workspace.Creation{Name: "9-Ä", Now: start(), Spec: workspace.Spec{
		Image:       "Registry.example/IDE",
		CPU:         "many",
		Memory:      "-1",
		VolumeSize:  "500m",
		Command:     []string{"ok", "\xff"},
		Args:        []string{"\x00"},
		Ports:       []workspace.Port{{"http", 80}, {"http", 80}, {"UPPER", 0}},
		Env:         map[string]string{"1X": "", "OK": "a\x00"},
		SecretEnv:   []string{"OK", "A-B", "T", "T"},
		SecretFiles: []string{"/abs", "../up", "a//b", "k", "k", "k/below", ""},
	}})
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.Equal(t, []string{
		"args[0]",
		"command[1]",
		"cpu",
		"env[1X]",
		"env[OK]",
		"image",
		"memory",
		"name",
		"ports[1].name",
		"ports[1].number",
		"ports[2].name",
		"ports[2].number",
		"secret_env[0]",
		"secret_env[1]",
		"secret_env[3]",
		"secret_files[0]",
		"secret_files[1]",
		"secret_files[2]",
		"secret_files[4]",
		"secret_files[5]",
		"secret_files[6]",
		"volume_size",
	}, sortedKeys(fault.From(err).Details))
	for _, name := range []string{"", "-a", "a-", "a.b", strings.Repeat("a", 41)} {
		_, _, err := workspace.New(workspace.Creation{Name: name, Spec: workspace.Spec{Image: "a"}})
		require.ErrorContains(t, err, "is not a workspace name", name)
	}
}

func TestImageReferences(t *testing.T) {
	t.Parallel()
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for _, image := range []string{"a", "a/b", "registry.example/ide:9", "localhost:5000/a_b/c__d.e-f:V1.2_x", "[::1]:5000/a", "a" + digest, "r.example/a:1" + digest} {
		require.NoError(t, workspace.Spec{Image: image}.WithDefaults().Validate(), image)
	}
	for _, image := range []string{"A", "a:", "a b", "a/", "/a", "a//b", "a@sha256:12", "http://a/b", "a:" + strings.Repeat("t", 129), "a\n"} {
		require.ErrorContains(t, workspace.Spec{Image: image}.WithDefaults().Validate(), "is not an image reference", image)
	}
}

func TestKeysOfSecretFiles(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, workspace.SecretFileKey("a/b"), workspace.SecretFileKey("a_b"))
	require.Regexp(t, `^[-._a-zA-Z0-9]{1,253}$`, workspace.SecretFileKey(strings.Repeat("ä/", 100)))
}

func FuzzSpecValidateNeverPanics(f *testing.F) {
	f.Add("a:1", "1", "1Gi", "http", "A", "v", "k/x")
	f.Fuzz(func(t *testing.T, image, cpu, memory, port, env, value, file string) {
		err := workspace.Spec{
			Image:       image,
			CPU:         cpu,
			Memory:      memory,
			VolumeSize:  memory,
			Ports:       []workspace.Port{{port, 1}},
			Env:         map[string]string{env: value},
			SecretEnv:   []string{value},
			SecretFiles: []string{file, file + "/x"},
			Command:     []string{value},
			Args:        []string{env},
		}.WithDefaults().Validate()
		if err != nil {
			require.True(t, fault.Is(err, errcode.InvalidArgument))
			require.NotEmpty(t, fault.From(err).Details)
		}
	})
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
