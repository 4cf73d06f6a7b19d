package state_test

import (
	"encoding/json"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// desired returns the last published desired state of a workspace, from a revision on.
func (b *fixture) desired(t *testing.T, agent int64, id string, revision int) string {
	t.Helper()
	var data string
	require.Eventually(t, func() bool {
		if data = b.last(t, topology.StreamDesired, topology.Cell("local").Desired(agent, id)); data == "" {
			return false
		}
		var d events.DesiredWorkspace
		require.NoError(t, json.Unmarshal([]byte(data), &d))
		require.LessOrEqual(t, d.DesiredRevision, revision, "no other revision is published")
		return d.DesiredRevision == revision
	}, time.Minute, 10*time.Millisecond, "revision %d", revision)
	return data
}

func TestSettingsOfCellAndAgentReachTheDesiredState(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.cfg.Workspace.EgressAllowed, b.cfg.Workspace.DefaultMemory = []string{"10.9.0.0/16"}, "768Mi"
	b.cfg.Workspace.StorageClass = "fast"
	stop := b.start(t)
	admin := b.as(t, b.admin)
	project, registered := admin.project()
	agent := registered.GetAgent().GetId()
	configure := func(c *statev1.AgentConfiguration, reset ...string) *statev1.AgentConfiguration {
		request := &statev1.ConfigureAgentRequest{Id: agent, Configuration: c, Reset_: reset}
		return call(t, admin.agents.ConfigureAgent, request).GetAgent().GetConfiguration()
	}
	require.Equal(t, "768Mi", registered.GetAgent().GetConfiguration().GetDefaultMemory())
	w := call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "ide", ProjectId: project}).
		GetWorkspace()
	require.Equal(t, "fast", w.GetStorageClass())
	id := w.GetId()
	first := b.desired(t, agent, id, 1)
	require.Contains(t, first, `"10.9.0.0/16"`)
	require.Contains(t, first, `"memory":"768Mi"`)

	// A setting of the agent overrides the cell's, and renders the workspace again. A maximum does not.
	configure(&statev1.AgentConfiguration{MaxCpu: new("4")})
	configure(&statev1.AgentConfiguration{EgressAllowed: &statev1.StringList{Values: []string{"10.8.0.0/16"}}})
	found := call(t, admin.agents.GetAgent, &statev1.GetAgentRequest{Id: agent}).GetAgent()
	require.Equal(t, []string{"egress_allowed", "max_cpu"}, found.GetOwnSettings())
	second := b.desired(t, agent, id, 2)
	require.Contains(t, second, `"10.8.0.0/16"`)
	require.NotContains(t, second, `"10.9.0.0/16"`)

	// A changed setting of the cell renders again when the service starts.
	stop()
	b.cfg.Workspace.EgressAllowed, b.cfg.Workspace.ResourceQuota = []string{"10.7.0.0/16"}, true
	stop = b.start(t)
	admin = b.as(t, b.admin)
	third := b.desired(t, agent, id, 3)
	require.Contains(t, third, `"ResourceQuota"`)
	require.Contains(t, third, `"10.8.0.0/16"`, "the agent's setting stays")

	// An unchanged one does not.
	stop()
	b.start(t)
	admin = b.as(t, b.admin)
	got := configure(nil, "egress_allowed")
	require.Equal(t, []string{"10.7.0.0/16"}, got.GetEgressAllowed().GetValues())
	require.Contains(t, b.desired(t, agent, id, 4), `"10.7.0.0/16"`)
	_, err := admin.agents.ConfigureAgent(t.Context(),
		connect.NewRequest(&statev1.ConfigureAgentRequest{Id: agent, Reset_: []string{"max_cpus"}}))
	require.ErrorContains(t, err, `"max_cpus" is not a setting`)
}

func TestMaximumsNameTheirOwner(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.cfg.Workspace.MaxCPU, b.cfg.Workspace.MaxMemory = "2", "4Gi"
	b.start(t)
	admin := b.as(t, b.admin)
	project, registered := admin.project()
	call(t, admin.agents.ConfigureAgent, &statev1.ConfigureAgentRequest{
		Id: registered.GetAgent().GetId(), Configuration: &statev1.AgentConfiguration{MaxMemory: new("2Gi")},
	})
	request := func(o *statev1.WorkspaceOverrides) *statev1.CreateWorkspaceRequest {
		return &statev1.CreateWorkspaceRequest{Name: "ide", ProjectId: project, Overrides: o}
	}
	tooLarge := &statev1.WorkspaceOverrides{Cpu: "3", Memory: "3Gi"}
	_, err := admin.workspaces.CreateWorkspace(t.Context(), connect.NewRequest(request(tooLarge)))
	require.True(t, fault.Is(err, errcode.InvalidArgument), "%v", err)
	want := map[string]string{
		"cpu":    `"3" is more than max_cpu of the cell, which is 2`,
		"memory": `"3Gi" is more than max_memory of agent "acme", which is 2Gi`,
	}
	require.Equal(t, want, fault.From(err).Details)
	_, err = admin.workspaces.CreateWorkspace(t.Context(), connect.NewRequest(&statev1.CreateWorkspaceRequest{
		ProjectId: project, Devfile: "schemaVersion: 2.2.0\nmetadata: {name: ide}\ncomponents:\n" +
			"- {name: ide, container: {image: 'ide:9', cpuLimit: '3', memoryLimit: 3Gi}}\n",
	}))
	require.Equal(t, want, fault.From(err).Details, "%v", err)

	w := call(t, admin.workspaces.CreateWorkspace, request(&statev1.WorkspaceOverrides{Cpu: "2", Memory: "2Gi"})).
		GetWorkspace()
	reference := &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Id{Id: w.GetId()}}
	_, err = admin.workspaces.UpdateWorkspace(t.Context(),
		connect.NewRequest(&statev1.UpdateWorkspaceRequest{Workspace: reference, Overrides: tooLarge}))
	require.Equal(t, want, fault.From(err).Details, "%v", err)
}

// TestMaximumsDoNotChangeDuringAnUpdate lets an update wait for its workspace. Meanwhile no setting can change.
func TestMaximumsDoNotChangeDuringAnUpdate(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	w := call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "ide", ProjectId: project}).
		GetWorkspace()
	open := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), b.cfg.Database.URL.Reveal())
		require.NoError(t, err)
		return conn
	}
	holder, other := open(), open()
	defer holder.Close(t.Context())
	defer other.Close(t.Context())
	tx, err := holder.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `select from state.workspaces where id = $1 for update`, w.GetId())
	require.NoError(t, err)
	updated := make(chan error, 1)
	go func() {
		_, err := admin.workspaces.UpdateWorkspace(t.Context(), connect.NewRequest(&statev1.UpdateWorkspaceRequest{
			Workspace: byName("ide"), Overrides: &statev1.WorkspaceOverrides{Cpu: "4"},
		}))
		updated <- err
	}()
	b.awaitBlocked(t, holder)
	_, err = other.Exec(t.Context(), `select from state.cell_settings for no key update nowait`)
	require.ErrorContains(t, err, "could not obtain lock")
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-updated)
}
