package workspace_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/invalid"
	"lockstep.internal/services/state/workspace"
)

func maximums() workspace.Maximums {
	return workspace.Maximums{
		CPU:        workspace.Maximum{Quantity: "2", Owner: "the cell"},
		Memory:     workspace.Maximum{Quantity: "4Gi", Owner: `agent "east"`},
		VolumeSize: workspace.Maximum{Quantity: "20Gi", Owner: "the cell"},
	}
}

func creation(spec workspace.Spec) workspace.Creation {
	spec.Image = "ide:9"
	return workspace.Creation{
		Name: "ide", ProjectID: 4, AgentID: 7, UserID: 9, Spec: spec, Maximums: maximums(), Now: start(),
		Defaults: workspace.Sizes{CPU: "250m", Memory: "512Mi", VolumeSize: "5Gi"},
	}
}

func TestNewWorkspaceGetsDefaultSizesOfItsAgent(t *testing.T) {
	t.Parallel()
	w, _, err := workspace.New(creation(workspace.Spec{Memory: "4096Mi"}))
	require.NoError(t, err)
	require.Equal(t, workspace.Spec{Image: "ide:9", CPU: "250m", Memory: "4096Mi", VolumeSize: "5Gi"}, w.Spec)
}

func TestSizesAboveTheMaximumAreRefused(t *testing.T) {
	t.Parallel()
	_, _, err := workspace.New(creation(workspace.Spec{CPU: "2001m", Memory: "5Gi", VolumeSize: "21Gi"}))
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.Equal(t, map[string]string{
		"cpu":         `"2001m" is more than max_cpu of the cell, which is 2`,
		"memory":      `"5Gi" is more than max_memory of agent "east", which is 4Gi`,
		"volume_size": `"21Gi" is more than max_volume_size of the cell, which is 20Gi`,
	}, fault.From(err).Details)

	adopted := creation(workspace.Spec{CPU: "3"})
	adopted.Adopted = &workspace.Adopted{Namespace: "ws-7-ide", DesiredState: workspace.DesiredRunning}
	_, _, err = workspace.New(adopted)
	require.ErrorContains(t, err, `cpu: "3" is more than max_cpu of the cell, which is 2`)
}

func TestWorkspaceAboveALoweredMaximumGoesOn(t *testing.T) {
	t.Parallel()
	large := creation(workspace.Spec{CPU: "4", Memory: "1Gi"})
	large.Maximums = workspace.Maximums{}
	w, _, err := workspace.New(large)
	require.NoError(t, err)

	_, _, err = w.SetDesired(workspace.DesiredStopped, 9, start())
	require.NoError(t, err)
	next := w.Spec
	next.Image = "ide:10"
	_, changed, err := w.SetSpec(next, maximums(), 9, start())
	require.NoError(t, err, "a size above the maximum may stay as it is")
	require.NotEmpty(t, changed)
	next.CPU = "3"
	_, _, err = w.SetSpec(next, maximums(), 9, start())
	require.NoError(t, err, "it may become smaller")
	next.CPU = "5"
	_, _, err = w.SetSpec(next, maximums(), 9, start())
	require.ErrorContains(t, err, `cpu: "5" is more than max_cpu of the cell, which is 2`)
	next.CPU, next.Memory = "4", "8Gi"
	_, _, err = w.SetSpec(next, maximums(), 9, start())
	require.ErrorContains(t, err, `memory: "8Gi" is more than max_memory of agent "east", which is 4Gi`)
}

func TestStorageClassNeverChanges(t *testing.T) {
	t.Parallel()
	w, _, err := workspace.New(creation(workspace.Spec{StorageClass: "fast"}))
	require.NoError(t, err)
	w, changed, err := w.SetSpec(workspace.Spec{Image: "ide:10", StorageClass: "slow"}, maximums(), 9, start())
	require.NoError(t, err)
	require.NotEmpty(t, changed)
	require.Equal(t, "fast", w.Spec.StorageClass)
}

func TestSettingsOfSizesAreValidated(t *testing.T) {
	t.Parallel()
	var f invalid.Fields
	workspace.ValidateSizes(&f, workspace.DefaultSizes(), workspace.Sizes{})
	require.NoError(t, f.Err("sizes"), "no maximum")
	f.Addf("other", "is wrong")
	workspace.ValidateSizes(&f,
		workspace.Sizes{CPU: "2", Memory: "", VolumeSize: "x"}, workspace.Sizes{CPU: "1", Memory: "-1", VolumeSize: "100m"})
	require.Equal(t, map[string]string{
		"other":               "is wrong",
		"default_memory":      `"" is not a quantity such as 500m, 2 or 1Gi`,
		"max_memory":          `"-1" is not positive`,
		"default_volume_size": `"x" is not a quantity such as 500m, 2 or 1Gi`,
		"max_volume_size":     `"100m" is not a whole number of bytes`,
	}, fault.From(f.Err("sizes")).Details)
}

func TestSettingsRenderEveryWorkspaceThatIsNotTerminated(t *testing.T) {
	t.Parallel()
	w, _, err := workspace.New(creation(workspace.Spec{}))
	require.NoError(t, err)
	for _, to := range []workspace.DesiredState{
		workspace.DesiredRunning, workspace.DesiredRestartRequested, workspace.DesiredStopped,
	} {
		before, _, err := w.SetDesired(to, 9, start())
		require.NoError(t, err)
		after, events := before.Render(start())
		require.Equal(t, before.DesiredRevision+1, after.DesiredRevision)
		require.Equal(t, to, after.DesiredState)
		require.Len(t, events, 1)
		require.True(t, workspace.Update{Before: before, After: after}.Renders())
	}
	terminated, _, err := w.SetDesired(workspace.DesiredTerminated, 9, start())
	require.NoError(t, err)
	same, events := terminated.Render(start())
	require.Equal(t, terminated, same)
	require.Empty(t, events)
}

func TestPatienceOfATerminationBeginsWithItsRequest(t *testing.T) {
	t.Parallel()
	w, _, err := workspace.New(creation(workspace.Spec{}))
	require.NoError(t, err)
	w, _, err = w.SetDesired(workspace.DesiredTerminated, 9, start())
	require.NoError(t, err)
	report := func(reason string, after time.Duration) workspace.TerminatingReport {
		return workspace.TerminatingReport{
			Revision: 2, At: start().Add(after), Reason: reason, Message: "because of " + reason,
		}
	}
	w, _ = w.Terminating(report("ObjectsRemain", time.Second))
	w, _ = w.Terminating(report("VolumeInUse", time.Minute))
	require.Equal(t, []string{"VolumeInUse", "because of VolumeInUse"}, []string{w.RemainingReason, w.RemainingMessage})

	observation := workspace.Observation{
		Clock: start().Add(time.Minute), Timeouts: actualstate.Timeouts{Termination: time.Hour},
	}
	w, _ = w.Observe(observation)
	require.Equal(t, actualstate.Terminating, w.ActualState)
	require.Equal(t, "VolumeInUse", w.Reason)
	require.Equal(t, start().Add(time.Hour), w.RecomputeAt)
	observation.Clock = w.RecomputeAt
	w, events := w.Observe(observation)
	require.Equal(t, actualstate.Error, w.ActualState)
	require.Len(t, events, 1)

	w, _ = w.Terminated(2, start().Add(2*time.Hour))
	w, _ = w.Observe(observation)
	require.Equal(t, actualstate.Terminated, w.ActualState)
	require.Empty(t, w.Reason)
}
