package state_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/testkit/natstest"
)

func TestPeopleSeeAndExtendIdleWorkspaces(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	ada, adas := admin.member(b, "ada", project)
	_, bobs := admin.member(b, "bob", project)
	made := call(t, adas.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "w"}).GetWorkspace()
	require.Equal(t, "no policy stops it when it is idle", made.GetKeptAliveBecause())
	require.Nil(t, made.GetIdleStopsAt())

	update := func(after time.Duration) *statev1.UpdateWorkspaceRequest {
		return &statev1.UpdateWorkspaceRequest{
			Workspace: theWorkspace(), Overrides: &statev1.WorkspaceOverrides{StopAfterIdle: durationpb.New(after)},
		}
	}
	refused(t, errcode.InvalidArgument, adas.workspaces.UpdateWorkspace, update(time.Minute))
	got := call(t, adas.workspaces.UpdateWorkspace, update(3*time.Hour)).GetWorkspace()
	require.Equal(t, 3*time.Hour, got.GetSpec().GetStopAfterIdle().AsDuration())
	require.Equal(t, made.GetCreatedAt().AsTime().Add(3*time.Hour), got.GetIdleStopsAt().AsTime())
	require.Equal(t, "stop_after_idle", got.GetExpiryPolicy())
	require.Contains(t, got.GetKeptAliveBecause(), "it was started at ")
	call(t, admin.agents.ConfigureAgent, &statev1.ConfigureAgentRequest{
		Id: made.GetAgentId(), Configuration: &statev1.AgentConfiguration{StopAfterIdle: durationpb.New(2 * time.Hour)},
	})

	// The service reads what people do.
	input := time.Now().UTC().Truncate(time.Millisecond)
	e, err := event.New(event.Attributes{
		Source: event.ServiceSource("local", "gateway"), Type: events.TypeActivityWorkspace, Subject: made.GetId(),
		ID: uuid.NewString(), Time: input,
	}, events.ActivityWorkspace{WorkspaceID: made.GetId(), UserID: int(ada), InputAt: input, Sessions: 1})
	require.NoError(t, err)
	m, err := event.Encode(e, topology.Cell("local").Activity(made.GetId()))
	require.NoError(t, err)
	_, err = natstest.Open(t, b.administrator(t)).PublishMsg(t.Context(), m)
	require.NoError(t, err)
	read := &statev1.GetWorkspaceRequest{Workspace: theWorkspace()}
	require.Eventually(t, func() bool {
		got = call(t, adas.workspaces.GetWorkspace, read).GetWorkspace()
		return got.GetLastActivityAt() != nil
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, input, got.GetLastActivityAt().AsTime())
	require.Equal(t, input.Add(2*time.Hour), got.GetIdleStopsAt().AsTime(), "the policy of the agent is shorter")
	require.Contains(t, got.GetKeptAliveBecause(), "its owner was active at ")

	extend := func(by time.Duration) *statev1.ExtendWorkspaceRequest {
		return &statev1.ExtendWorkspaceRequest{Workspace: theWorkspace(), Duration: durationpb.New(by)}
	}
	refused(t, errcode.PermissionDenied, bobs.shares.ExtendWorkspace, extend(time.Hour))
	refused(t, errcode.InvalidArgument, adas.shares.ExtendWorkspace, extend(25*time.Hour))
	refused(t, errcode.InvalidArgument, adas.shares.ExtendWorkspace,
		&statev1.ExtendWorkspaceRequest{Workspace: theWorkspace()})
	got = call(t, adas.shares.ExtendWorkspace, extend(10*time.Hour)).GetWorkspace()
	require.WithinDuration(t, time.Now().Add(10*time.Hour), got.GetExtendedUntil().AsTime(), time.Minute)
	require.Equal(t, got.GetExtendedUntil().AsTime(), got.GetIdleStopsAt().AsTime())
	require.Contains(t, got.GetKeptAliveBecause(), "it was extended until ")
	got = call(t, adas.workspaces.GetWorkspace, read).GetWorkspace()
	require.NotNil(t, got.GetExtendedUntil(), "it is stored")

	got = call(t, adas.workspaces.SetDesiredState, desire(statev1.DesiredState_DESIRED_STATE_STOPPED)).GetWorkspace()
	require.Nil(t, got.GetIdleStopsAt())
	require.Nil(t, got.GetExtendedUntil())
	require.Empty(t, got.GetKeptAliveBecause())
	refused(t, errcode.FailedPrecondition, adas.shares.ExtendWorkspace, extend(time.Hour))
}
