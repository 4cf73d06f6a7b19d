package agent_test

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/workspace"
)

func TestEachSettingOfAnAgentOverridesTheCell(t *testing.T) {
	t.Parallel()
	cell := agent.Settings{
		MaxCPU: new("2"), MaxMemory: new("2Gi"), ProgressDeadline: new(agent.Milliseconds(time.Hour)),
		PrivateRanges: &[]string{"10.0.0.0/8"},
	}
	all := reflect.ValueOf(allSettings())
	for i := range all.NumField() {
		var own agent.Settings
		reflect.ValueOf(&own).Elem().Field(i).Set(all.Field(i))
		layers := agent.Layers{Cell: cell, Agent: own}
		require.Equal(t, cell.Merge(own).Configuration(), layers.Configuration())
		require.NotEqual(t, cell.Configuration(), layers.Configuration(), all.Type().Field(i).Name)
	}
	require.Equal(t, workspace.Maximums{
		CPU:    workspace.Maximum{Quantity: "2", Owner: "the cell"},
		Memory: workspace.Maximum{Quantity: "", Owner: `agent "east"`},
	}, agent.Layers{Cell: cell, Agent: agent.Settings{MaxMemory: new("")}}.Maximums("east"))
}

// TestDefaultAboveTheMaximumIsTheMaximum lowers a maximum of the cell below a default of the agent, and the reverse.
func TestDefaultAboveTheMaximumIsTheMaximum(t *testing.T) {
	t.Parallel()
	cell := agent.Settings{MaxCPU: new("1"), MaxMemory: new("512Mi"), DefaultVolumeSize: new("20Gi")}
	own := agent.Settings{DefaultCPU: new("2"), MaxVolumeSize: new("5Gi")}
	layers := agent.Layers{Cell: cell, Agent: own}
	require.Equal(t, workspace.Sizes{CPU: "1", Memory: "512Mi", VolumeSize: "5Gi"}, layers.Configuration().Defaults)

	after, changed, err := layers.Change(agent.Settings{MaxWorkspaces: new(5)})
	require.NoError(t, err, "other settings can be changed")
	require.True(t, changed)
	after, _, err = after.Change(agent.Settings{MaxCPU: new("")})
	require.NoError(t, err)
	require.Equal(t, "2", after.Configuration().Defaults.CPU, "without the maximum, the default is as it was set")
}

func TestResetSettingsHaveTheValueOfTheCell(t *testing.T) {
	t.Parallel()
	layers := agent.Layers{Cell: agent.Settings{MaxCPU: new("8"), StorageClass: new("slow")}, Agent: allSettings()}
	after, changed, err := layers.Change(agent.Settings{MaxAge: new(agent.Milliseconds(time.Hour))},
		"max_cpu", "storage_class", "private_ranges", "progress_deadline", "max_age")
	require.NoError(t, err)
	require.True(t, changed)
	want := layers.Configuration()
	want.Maximums.CPU, want.StorageClass, want.MaxAge = "8", "slow", time.Hour
	want.Manifests.PrivateRanges = agent.DefaultManifests().PrivateRanges
	want.Manifests.ProgressDeadline = 10 * time.Minute
	require.Equal(t, want, after.Configuration())

	same, changed, err := after.Change(agent.Settings{}, "max_cpu")
	require.NoError(t, err)
	require.False(t, changed)
	require.Equal(t, after, same)

	_, _, err = layers.Change(agent.Settings{}, "max_cpus", "max_age_ms", "max_cpu")
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.ErrorContains(t, err, `"max_cpus" is not a setting; use one of full_resync_interval, `)
}

func TestEmptyListIsStored(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(agent.Settings{IngressPeers: &[]string{}})
	require.NoError(t, err)
	require.JSONEq(t, `{"ingress_peers": []}`, string(raw))
	var stored agent.Settings
	require.NoError(t, json.Unmarshal(raw, &stored))
	require.Empty(t, stored.Configuration().Manifests.IngressPeers)
	require.True(t, stored.Configuration().Equal(agent.Settings{IngressPeers: &[]string{}}.Configuration()))
}

func TestPeers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]agent.Peer{
		"monitoring":                      {Namespace: "monitoring"},
		"lockstep-agent-{agent_id}:a/b=c": {Namespace: "lockstep-agent-7", Labels: map[string]string{"a/b": "c"}},
		"ingress:name=nginx:component=web": {
			Namespace: "ingress", Labels: map[string]string{"name": "nginx", "component": "web"},
		},
		"ingress:name=": {Namespace: "ingress", Labels: map[string]string{"name": ""}},
	} {
		got, err := agent.ParsePeer(text, 7)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", ":a=b", "a_b", "a:b", "a:=b", "a:b=c d", "a:b=c:", "{id}", "a:b=c:b=d"} {
		_, err := agent.ParsePeer(text, 7)
		require.Error(t, err, text)
	}
}

func TestOnlyPeersThatEachAgentCanRenderAreValid(t *testing.T) {
	t.Parallel()
	validate := func(peer string) error {
		return agent.Settings{IngressPeers: &[]string{peer}, DNSPeers: &[]string{peer}}.Configuration().Validate()
	}
	id, long := int64(math.MaxInt64), "ns"
	for i := range 100 {
		long += fmt.Sprintf(":label-%d=value", i)
	}
	fitting := strings.Repeat("n", 63-len(strconv.FormatInt(id, 10))) + "{agent_id}"
	require.NoError(t, validate(fitting))
	_, err := agent.ParsePeer(fitting, id)
	require.NoError(t, err)
	for _, peer := range []string{"n" + fitting, strings.Repeat("{agent_id}", 10), long, "ns:a=b:a=c"} {
		require.Len(t, fault.From(validate(peer)).Details, 2, peer)
	}
}
