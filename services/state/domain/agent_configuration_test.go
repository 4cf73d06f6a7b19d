package domain_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/domain"
)

// everything has each setting, none of them the default.
func everything() domain.AgentSettings {
	return domain.AgentSettings{
		FullResyncInterval: new(domain.Milliseconds(time.Minute)), UnschedulablePatience: new(domain.Milliseconds(2 * time.Minute)),
		StopPatience: new(domain.Milliseconds(0)), MaxWorkspaces: new(0), MaxWorkspacesPerUser: new(3),
		StopAfterRunning: new(domain.Milliseconds(8 * time.Hour)), TerminateAfterStopped: new(domain.Milliseconds(720 * time.Hour)),
		MaxAge: new(domain.Milliseconds(9000 * time.Hour)), ExpiryWarning: new(domain.Milliseconds(1500 * time.Millisecond)),
		RelayTargets: &[]domain.RelayTarget{{Name: "shop", Address: "shop.apps.svc:80"}, {Name: "db", Address: "10.0.0.7:5432"}},
	}
}

func TestAnAgentOfWhichNothingIsSetHasTheDefaults(t *testing.T) {
	t.Parallel()
	c := domain.AgentSettings{}.Configuration()
	require.Equal(t, domain.DefaultAgentConfiguration(), c)
	require.NoError(t, c.Validate())
	require.Equal(t, actualstate.Patience{Unschedulable: 5 * time.Minute, Stop: 5 * time.Minute}, c.Patience())
	require.Equal(t, domain.AgePolicies{Warning: 15 * time.Minute}, c.AgePolicies(), "nothing is ended")
	require.False(t, c.Limited())
}

func TestEverySettingHolds(t *testing.T) {
	t.Parallel()
	c := everything().Configuration()
	require.NoError(t, c.Validate())
	require.Equal(t, domain.AgentConfiguration{
		FullResyncInterval: time.Minute, UnschedulablePatience: 2 * time.Minute, StopPatience: 0, MaxWorkspaces: 0, MaxWorkspacesPerUser: 3,
		StopAfterRunning: 8 * time.Hour, TerminateAfterStopped: 720 * time.Hour, MaxAge: 9000 * time.Hour, ExpiryWarning: 1500 * time.Millisecond,
		RelayTargets: []domain.RelayTarget{{Name: "db", Address: "10.0.0.7:5432"}, {Name: "shop", Address: "shop.apps.svc:80"}},
	}, c)
	require.Equal(t, domain.AgePolicies{StopAfterRunning: 8 * time.Hour, TerminateAfterStopped: 720 * time.Hour, MaxAge: 9000 * time.Hour, Warning: 1500 * time.Millisecond}, c.AgePolicies())
	require.True(t, c.Limited())

	raw, err := json.Marshal(everything())
	require.NoError(t, err)
	var stored domain.AgentSettings
	require.NoError(t, json.Unmarshal(raw, &stored))
	require.Equal(t, everything(), stored)
	raw, err = json.Marshal(domain.AgentSettings{MaxAge: new(domain.Milliseconds(time.Second))})
	require.NoError(t, err)
	require.JSONEq(t, `{"max_age_ms":1000}`, string(raw), "what is not set is not stored")
	require.Error(t, json.Unmarshal([]byte(`{"max_age_ms":"1s"}`), &stored))
}

func TestAChangeLeavesWhatItDoesNotName(t *testing.T) {
	t.Parallel()
	whole := reflect.ValueOf(everything())
	for i := range whole.NumField() {
		var change domain.AgentSettings
		reflect.ValueOf(&change).Elem().Field(i).Set(whole.Field(i))
		require.Equal(t, change, domain.AgentSettings{}.Merge(change), whole.Type().Field(i).Name)
		require.Equal(t, everything(), everything().Merge(change))
		require.Equal(t, everything(), change.Merge(everything()))
		require.NotEqual(t, domain.DefaultAgentConfiguration(), change.Configuration(), whole.Type().Field(i).Name)
	}
	require.Equal(t, everything(), everything().Merge(domain.AgentSettings{}))
	require.Equal(t, 7, *everything().Merge(domain.AgentSettings{MaxWorkspaces: new(7)}).MaxWorkspaces)
}

func TestEverythingThatIsWrongIsToldAtOnce(t *testing.T) {
	t.Parallel()
	wrong := domain.AgentConfiguration{
		FullResyncInterval: 0, UnschedulablePatience: -1, StopPatience: time.Millisecond, MaxWorkspaces: -2, MaxWorkspacesPerUser: -3,
		StopAfterRunning: 999 * time.Millisecond, TerminateAfterStopped: -time.Hour, MaxAge: 1, ExpiryWarning: -time.Second,
	}
	err := wrong.Validate()
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.Equal(t, "the agent's configuration is not valid: full_resync_interval: 0s is less than 1s; "+
		"unschedulable_patience: -1ns is neither 0, for never, nor 1s or more; stop_patience: 1ms is neither 0, for never, nor 1s or more; "+
		"stop_after_running: 999ms is neither 0, for never, nor 1s or more; terminate_after_stopped: -1h0m0s is neither 0, for never, nor 1s or more; "+
		"max_age: 1ns is neither 0, for never, nor 1s or more; expiry_warning: -1s is neither 0, for never, nor 1s or more; "+
		"max_workspaces: -2 is neither -1, for no limit, nor a number of workspaces; max_workspaces_per_user: -3 is neither -1, for no limit, nor a number of workspaces",
		fault.From(err).Message)
	require.Len(t, fault.From(err).Details, 9)
}
