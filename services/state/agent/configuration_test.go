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
		StopAfterIdle:         new(agent.Milliseconds(2 * time.Hour)),
		ExpiryWarning:         new(agent.Milliseconds(1500 * time.Millisecond)),
		RelayTargets: &[]agent.RelayTarget{
			{Name: "shop", Address: "shop.apps.svc:80"},
			{Name: "db", Address: "10.0.0.7:5432"},
		},
		TerminationPatience: new(agent.Milliseconds(time.Hour)),
		IngressPeers:        &[]string{"monitoring:app=prometheus"},
		DNSPeers:            &[]string{"dns"},
		PrivateRanges:       &[]string{},
		EgressAllowed:       &[]string{"10.1.0.0/16"},
		ProgressDeadline:    new(agent.Milliseconds(time.Minute)),
		ResourceQuota:       new(true),
		StorageClass:        new("fast"),
		DefaultCPU:          new("1"),
		DefaultMemory:       new("2Gi"),
		DefaultVolumeSize:   new("3Gi"),
		MaxCPU:              new("4"),
		MaxMemory:           new("5Gi"),
		MaxVolumeSize:       new("6Gi"),
		AgentImage:          new("registry.example/workspace-agent:1"),
		SSHAuthorities:      &[]string{authority},
		OwnerAccess:         new(true),
		IdleCountsProcesses: new(true),
	}
}

const authority = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFbVu5ut76D36vYtaiIGYjo3BSiuzKRoqXwTUVwXm+V0"

func TestAgentWithoutSettingsHasTheDefaults(t *testing.T) {
	t.Parallel()
	c := agent.Settings{}.Configuration()
	require.Equal(t, agent.DefaultConfiguration(), c)
	require.NoError(t, c.Validate())
	timeouts := actualstate.Timeouts{
		Unschedulable: 5 * time.Minute, PodTermination: 5 * time.Minute, Termination: 5 * time.Minute,
	}
	require.Equal(t, timeouts, c.Timeouts())
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
		StopAfterIdle:         2 * time.Hour,
		IdleCountsProcesses:   true,
		ExpiryWarning:         1500 * time.Millisecond,
		RelayTargets: []agent.RelayTarget{
			{Name: "db", Address: "10.0.0.7:5432"},
			{Name: "shop", Address: "shop.apps.svc:80"},
		},
		TerminationPatience: time.Hour,
		Manifests: agent.Manifests{
			IngressPeers: []string{"monitoring:app=prometheus"}, DNSPeers: []string{"dns"},
			EgressAllowed: []string{"10.1.0.0/16"}, ProgressDeadline: time.Minute, ResourceQuota: true,
			AgentImage: "registry.example/workspace-agent:1", SSHAuthorities: []string{authority}, OwnerAccess: true,
		},
		StorageClass: "fast",
		Defaults:     workspace.Sizes{CPU: "1", Memory: "2Gi", VolumeSize: "3Gi"},
		Maximums:     workspace.Sizes{CPU: "4", Memory: "5Gi", VolumeSize: "6Gi"},
	}, c)
	require.Equal(
		t,
		workspace.AgePolicies{
			StopAfterRunning:      8 * time.Hour,
			TerminateAfterStopped: 720 * time.Hour,
			MaxAge:                9000 * time.Hour,
			StopAfterIdle:         2 * time.Hour,
			IdleCountsProcesses:   true,
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
	wrong := agent.DefaultConfiguration()
	wrong.FullResyncInterval, wrong.UnschedulablePatience, wrong.StopPatience = 0, -1, time.Millisecond
	wrong.TerminationPatience, wrong.MaxWorkspaces, wrong.MaxWorkspacesPerUser = -1, -2, -3
	wrong.StopAfterRunning, wrong.TerminateAfterStopped = 999*time.Millisecond, -time.Hour
	wrong.MaxAge, wrong.ExpiryWarning, wrong.StopAfterIdle = 1, -time.Second, 2*time.Minute-1
	wrong.Manifests = agent.Manifests{
		IngressPeers:  []string{"monitoring", "", "ns:label"},
		DNSPeers:      []string{"NS:a=b"},
		PrivateRanges: []string{"10.0.0.1/8", "::/0", "::ffff:10.0.0.0/104"},
		EgressAllowed: make([]string, 51),
	}
	wrong.StorageClass = "Fast!"
	err := wrong.Validate()
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.Equal(t, map[string]string{
		"full_resync_interval":    "0s is less than 1s",
		"unschedulable_patience":  "-1ns is neither 0 (never) nor at least 1s",
		"stop_patience":           "1ms is neither 0 (never) nor at least 1s",
		"termination_patience":    "-1ns is neither 0 (never) nor at least 1s",
		"stop_after_running":      "999ms is neither 0 (never) nor at least 1s",
		"terminate_after_stopped": "-1h0m0s is neither 0 (never) nor at least 1s",
		"max_age":                 "1ns is neither 0 (never) nor at least 1s",
		"stop_after_idle":         "1m59.999999999s is neither 0 (never) nor at least 2m0s",
		"expiry_warning":          "-1s is neither 0 (never) nor at least 1s",
		"max_workspaces":          "-2 is neither -1 (no limit) nor a number of workspaces",
		"max_workspaces_per_user": "-3 is neither -1 (no limit) nor a number of workspaces",
		"ingress_peers[1]":        `"" does not begin with the name of a namespace: use NAMESPACE:LABEL=VALUE`,
		"ingress_peers[2]":        `"label" of "ns:label" is not a label: use NAMESPACE:LABEL=VALUE`,
		"dns_peers[0]":            `"NS:a=b" does not begin with the name of a namespace: use NAMESPACE:LABEL=VALUE`,
		"private_ranges[0]":       `"10.0.0.1/8" must be written as 10.0.0.0/8`,
		"private_ranges[1]":       `"::/0" contains all addresses: use smaller networks`,
		"private_ranges[2]":       `"::ffff:10.0.0.0/104" must be written as an IPv4 network`,
		"egress_allowed":          "has 51 entries, the limit is 50",
		"progress_deadline":       "0s is not between 1s and 24h0m0s",
		"storage_class":           `"Fast!" is not the name of a StorageClass`,
	}, fault.From(err).Details)

	wrong = agent.DefaultConfiguration()
	wrong.Manifests.ProgressDeadline = 1500 * time.Millisecond
	require.ErrorContains(t, wrong.Validate(), "progress_deadline: 1.5s is not a whole number of seconds")
}
