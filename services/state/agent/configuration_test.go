package agent_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/workspace"
)

// allSettings has each setting with a value other than the default.
func allSettings() agent.Settings {
	return agent.Settings{
		FullResyncInterval: new(
			agent.Milliseconds(time.Minute),
		),
		UnschedulablePatience: new(agent.Milliseconds(2 * time.Minute)),
		StopPatience:          new(agent.Milliseconds(0)),
		MaxWorkspaces:         new(0),
		MaxWorkspacesPerUser:  new(3),
		StopAfterRunning: new(
			agent.Milliseconds(8 * time.Hour),
		),
		TerminateAfterStopped: new(agent.Milliseconds(720 * time.Hour)),
		MaxAge:                new(agent.Milliseconds(9000 * time.Hour)),
		ExpiryWarning:         new(agent.Milliseconds(1500 * time.Millisecond)),
		RelayTargets: &[]agent.RelayTarget{
			{Name: "shop", Address: "shop.apps.svc:80"},
			{Name: "db", Address: "10.0.0.7:5432"},
		},
	}
}

func TestAgentWithoutSettingsHasTheDefaults(t *testing.T) {
	t.Parallel()
	c := agent.Settings{}.Configuration()
	require.Equal(t, agent.DefaultConfiguration(), c)
	require.NoError(t, c.Validate())
	timeouts := actualstate.PodTimeouts{Unschedulable: 5 * time.Minute, Termination: 5 * time.Minute}
	require.Equal(t, timeouts, c.PodTimeouts())
	require.Equal(t, workspace.AgePolicies{Warning: 15 * time.Minute}, c.AgePolicies(), "nothing is ended")
	require.False(t, c.Limited())
}

func TestEverySettingTakesEffect(t *testing.T) {
	t.Parallel()
	c := allSettings().Configuration()
	require.NoError(t, c.Validate())
	require.Equal(t, agent.Configuration{
		FullResyncInterval:    time.Minute,
		UnschedulablePatience: 2 * time.Minute,
		StopPatience:          0,
		MaxWorkspaces:         0,
		MaxWorkspacesPerUser:  3,
		StopAfterRunning:      8 * time.Hour,
		TerminateAfterStopped: 720 * time.Hour,
		MaxAge:                9000 * time.Hour,
		ExpiryWarning:         1500 * time.Millisecond,
		RelayTargets: []agent.RelayTarget{
			{Name: "db", Address: "10.0.0.7:5432"},
			{Name: "shop", Address: "shop.apps.svc:80"},
		},
	}, c)
	require.Equal(
		t,
		workspace.AgePolicies{
			StopAfterRunning:      8 * time.Hour,
			TerminateAfterStopped: 720 * time.Hour,
			MaxAge:                9000 * time.Hour,
			Warning:               1500 * time.Millisecond,
		},
		c.AgePolicies(),
	)
	require.True(t, c.Limited())

	raw, err := json.Marshal(allSettings())
	require.NoError(t, err)
	var stored agent.Settings
	require.NoError(t, json.Unmarshal(raw, &stored))
	require.Equal(t, allSettings(), stored)
	raw, err = json.Marshal(agent.Settings{MaxAge: new(agent.Milliseconds(time.Second))})
	require.NoError(t, err)
	require.JSONEq(t, `{"max_age_ms":1000}`, string(raw), "what is not set is not stored")
	require.Error(t, json.Unmarshal([]byte(`{"max_age_ms":"1s"}`), &stored))
}

func TestSettingsChangeKeepsOtherFields(t *testing.T) {
	t.Parallel()
	whole := reflect.ValueOf(allSettings())
	for i := range whole.NumField() {
		var change agent.Settings
		reflect.ValueOf(&change).Elem().Field(i).Set(whole.Field(i))
		require.Equal(t, change, agent.Settings{}.Merge(change), whole.Type().Field(i).Name)
		require.Equal(t, allSettings(), allSettings().Merge(change))
		require.Equal(t, allSettings(), change.Merge(allSettings()))
		require.NotEqual(t, agent.DefaultConfiguration(), change.Configuration(), whole.Type().Field(i).Name)
	}
	require.Equal(t, allSettings(), allSettings().Merge(agent.Settings{}))
	require.Equal(t, 7, *allSettings().Merge(agent.Settings{MaxWorkspaces: new(7)}).MaxWorkspaces)
}

func TestValidateReportsAllInvalidFields(t *testing.T) {
	t.Parallel()
	wrong := agent.Configuration{
		FullResyncInterval:    0,
		UnschedulablePatience: -1,
		StopPatience:          time.Millisecond,
		MaxWorkspaces:         -2,
		MaxWorkspacesPerUser:  -3,
		StopAfterRunning:      999 * time.Millisecond,
		TerminateAfterStopped: -time.Hour,
		MaxAge:                1,
		ExpiryWarning:         -time.Second,
	}
	err := wrong.Validate()
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.Equal(t, "the agent's configuration is not valid: full_resync_interval: 0s is less than 1s; "+
		"unschedulable_patience: -1ns is neither 0 (never) nor at least 1s; stop_patience: 1ms is neither 0 (never) nor at least 1s; "+
		"stop_after_running: 999ms is neither 0 (never) nor at least 1s; terminate_after_stopped: -1h0m0s is neither 0 (never) nor at least 1s; "+
		"max_age: 1ns is neither 0 (never) nor at least 1s; expiry_warning: -1s is neither 0 (never) nor at least 1s; "+
		"max_workspaces: -2 is neither -1 (no limit) nor a number of workspaces; max_workspaces_per_user: -3 is neither -1 (no limit) nor a number of workspaces",
		fault.From(err).Message)
	require.Len(t, fault.From(err).Details, 9)
}
