package state_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestOperatorsConfigureAgents(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, registered := admin.project()
	agent := registered.GetAgent().GetId()
	defaults := &statev1.AgentConfiguration{
		Revision:              1,
		FullResyncInterval:    durationpb.New(time.Hour),
		UnschedulablePatience: durationpb.New(5 * time.Minute),
		StopPatience:          durationpb.New(5 * time.Minute),
		MaxWorkspaces: proto.Int32(
			-1,
		),
		MaxWorkspacesPerUser:  proto.Int32(-1),
		StopAfterRunning:      durationpb.New(0),
		TerminateAfterStopped: durationpb.New(0),
		MaxAge:                durationpb.New(0),
		StopAfterIdle:         durationpb.New(0),
		ExpiryWarning:         durationpb.New(15 * time.Minute),
		RelayTargets:          &statev1.RelayTargets{},
		TerminationPatience:   durationpb.New(5 * time.Minute),
		IngressPeers: &statev1.StringList{Values: []string{
			"lockstep-agent-{agent_id}:app.kubernetes.io/name=lockstep-relay-agent",
		}},
		DnsPeers: &statev1.StringList{Values: []string{"kube-system:k8s-app=kube-dns"}},
		PrivateRanges: &statev1.StringList{Values: []string{
			"10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
			"::1/128", "fc00::/7", "fe80::/10",
		}},
		EgressAllowed:    &statev1.StringList{},
		ProgressDeadline: durationpb.New(10 * time.Minute),
		ResourceQuota:    new(false),
		OwnerAccess:      new(false),

		IdleCountsProcesses: new(false),
		StorageClass:        new(""),
		DefaultCpu:          new("500m"),
		DefaultMemory:       new("1Gi"),
		DefaultVolumeSize:   new("10Gi"),
		MaxCpu:              new(""),
		MaxMemory:           new(""),
		MaxVolumeSize:       new(""),
		AgentImage:          new(""),
		SshAuthorities:      &statev1.StringList{},
	}
	equal := func(want, got proto.Message) {
		t.Helper()
		require.True(t, proto.Equal(want, got), "%v", got)
	}
	equal(defaults, registered.GetAgent().GetConfiguration())
	control := topology.Cell("local").ControlConfig(agent)
	require.Eventually(
		t,
		func() bool { return b.holds(t, topology.StreamControl, control) },
		time.Minute,
		10*time.Millisecond,
		"it is published at once",
	)

	configure := func(c *statev1.AgentConfiguration) *statev1.ConfigureAgentRequest {
		return &statev1.ConfigureAgentRequest{Id: agent, Configuration: c}
	}
	want := proto.CloneOf(defaults)
	want.Revision, want.MaxWorkspacesPerUser, want.StopAfterRunning = 2, proto.Int32(1), durationpb.New(8*time.Hour)
	change := &statev1.AgentConfiguration{
		Revision:             99,
		MaxWorkspacesPerUser: proto.Int32(1),
		StopAfterRunning:     durationpb.New(8 * time.Hour),
	}
	equal(want, call(t, admin.agents.ConfigureAgent, configure(change)).GetAgent().GetConfiguration())
	equal(want, call(t, admin.agents.ConfigureAgent, configure(change)).GetAgent().GetConfiguration())
	equal(want, call(t, admin.agents.ConfigureAgent, configure(nil)).GetAgent().GetConfiguration())
	equal(want, call(t, admin.agents.GetAgent, &statev1.GetAgentRequest{Id: agent}).GetAgent().GetConfiguration())
	equal(want, call(t, admin.agents.ListAgents, &statev1.ListAgentsRequest{}).GetAgents()[0].GetConfiguration())
	_, err := admin.agents.ConfigureAgent(
		t.Context(),
		connect.NewRequest(
			configure(&statev1.AgentConfiguration{MaxWorkspaces: proto.Int32(-2), FullResyncInterval: durationpb.New(0)}),
		),
	)
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.Len(t, fault.From(err).Details, 2, "all faults are reported: %v", err)
	targets := &statev1.RelayTargets{
		Targets: []*statev1.RelayTarget{
			{Name: "db", Address: "db.apps.svc:5432"},
			{Name: "shop", Address: "shop.apps.svc:80"},
		},
	}
	for i, c := range []struct{ given, want *statev1.RelayTargets }{
		{targets, targets},
		{nil, targets},
		{&statev1.RelayTargets{}, &statev1.RelayTargets{}},
	} {
		got := call(
			t,
			admin.agents.ConfigureAgent,
			configure(&statev1.AgentConfiguration{RelayTargets: c.given, MaxWorkspaces: new(int32(50 + i))}),
		)
		equal(c.want, got.GetAgent().GetConfiguration().GetRelayTargets())
	}
	call(t, admin.agents.ConfigureAgent, configure(&statev1.AgentConfiguration{MaxWorkspaces: proto.Int32(-1)}))
	refused(
		t,
		errcode.InvalidArgument,
		admin.agents.ConfigureAgent,
		configure(
			&statev1.AgentConfiguration{
				RelayTargets: &statev1.RelayTargets{Targets: []*statev1.RelayTarget{{Name: "kubernetes", Address: "a:1"}}},
			},
		),
	)
	refused(
		t,
		errcode.InvalidArgument,
		admin.agents.ConfigureAgent,
		configure(&statev1.AgentConfiguration{MaxAge: &durationpb.Duration{Seconds: 1, Nanos: -1}}),
	)
	refused(t, errcode.NotFound, admin.agents.ConfigureAgent, &statev1.ConfigureAgentRequest{Id: 999})

	ada, adas := admin.user(b, "ada")
	put := func(role statev1.Role) {
		call(
			t,
			admin.directory.PutMembership,
			&statev1.PutMembershipRequest{
				Membership: &statev1.Membership{
					UserId:  ada,
					Scope:   statev1.ScopeKind_SCOPE_KIND_PROJECT,
					ScopeId: project,
					Role:    role,
				},
			},
		)
	}
	resync := &statev1.RequestResyncRequest{Id: agent}
	refused(t, errcode.NotFound, adas.agents.ConfigureAgent, configure(change))
	put(statev1.Role_ROLE_DEVELOPER)
	refused(t, errcode.PermissionDenied, adas.agents.ConfigureAgent, configure(change))
	refused(t, errcode.PermissionDenied, adas.agents.RequestResync, resync)

	// The quota and the policy apply to her workspaces.
	made := call(
		t,
		adas.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "first", IdempotencyKey: "k"},
	).GetWorkspace()
	require.Equal(t, "stop_after_running", made.GetExpiryPolicy())
	require.Equal(t, made.GetCreatedAt().AsTime().Add(8*time.Hour), made.GetExpiresAt().AsTime())
	_, err = adas.workspaces.CreateWorkspace(
		t.Context(),
		connect.NewRequest(&statev1.CreateWorkspaceRequest{Name: "second"}),
	)
	require.True(t, fault.Is(err, errcode.QuotaExceeded), err)
	require.Equal(
		t,
		`user ada has 1 workspace on agent "acme", the limit per user is 1: terminate one, or ask a maintainer to raise max_workspaces_per_user`,
		fault.From(err).Message,
	)
	again := call(
		t,
		adas.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "first", IdempotencyKey: "k"},
	).GetWorkspace()
	require.Equal(t, made.GetId(), again.GetId(), "a repeated request returns the first workspace")
	stopped := call(
		t,
		adas.workspaces.SetDesiredState,
		&statev1.SetDesiredStateRequest{Workspace: byName("first"), DesiredState: statev1.DesiredState_DESIRED_STATE_STOPPED},
	).GetWorkspace()
	require.Nil(t, stopped.GetExpiresAt())
	call(
		t,
		adas.workspaces.SetDesiredState,
		&statev1.SetDesiredStateRequest{
			Workspace:    byName("first"),
			DesiredState: statev1.DesiredState_DESIRED_STATE_TERMINATED,
		},
	)
	call(t, adas.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "second"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := adas.workspaces.WatchWorkspaces(
		ctx,
		connect.NewRequest(
			&statev1.WatchWorkspacesRequest{
				Filter: &statev1.WorkspaceFilter{Workspaces: []*statev1.WorkspaceReference{byName("second")}},
			},
		),
	)
	require.NoError(t, err)
	defer stream.Close()
	require.True(t, stream.Receive(), "%v", stream.Err())
	require.Equal(t, "stop_after_running", stream.Msg().GetWorkspace().GetExpiryPolicy())

	put(statev1.Role_ROLE_MAINTAINER)
	call(t, adas.agents.ConfigureAgent, configure(&statev1.AgentConfiguration{MaxWorkspacesPerUser: proto.Int32(-1)}))
	require.Nil(
		t,
		call(t, adas.agents.GetAgent, &statev1.GetAgentRequest{Id: agent}).GetAgent().GetLastResync(),
		"its watcher was never here",
	)
	first, second := call(
		t,
		adas.agents.RequestResync,
		resync,
	).GetNonce(),
		call(
			t,
			adas.agents.RequestResync,
			resync,
		).GetNonce()
	require.NotEmpty(t, first)
	require.Less(t, first, second, "nonces grow")
	require.Eventually(
		t,
		func() bool { return b.holds(t, topology.StreamControl, topology.Cell("local").ControlResync(agent)) },
		time.Minute,
		10*time.Millisecond,
	)

	call(t, admin.agents.RevokeAgent, &statev1.RevokeAgentRequest{Id: agent})
	refused(t, errcode.FailedPrecondition, adas.agents.RequestResync, resync)
	refused(t, errcode.FailedPrecondition, adas.agents.ConfigureAgent, configure(change))
}
