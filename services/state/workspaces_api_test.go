package state_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

const aDevfile = `
schemaVersion: 2.2.0
metadata: {name: shop}
components: [{name: tools, container: {image: "registry.example/ide:9", command: [ide], args: [--serve],
  env: [{name: A, value: "1"}, {name: B, value: "2"}]}}]
`

func TestWorkspaceFromADevfile(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	w := call(
		t,
		admin.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{ProjectId: project, Devfile: aDevfile},
	).GetWorkspace()
	require.Equal(t, "shop", w.GetName())
	require.Equal(t, "(devfile)", w.GetTemplate())
	require.Equal(t, "registry.example/ide:9", w.GetSpec().GetImage())
	require.Equal(t, []string{"ide"}, w.GetSpec().GetCommand())
	require.Equal(t, []string{"--serve"}, w.GetSpec().GetArgs())

	changed := call(
		t,
		admin.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{
			Name:      "changed",
			ProjectId: project,
			Devfile:   aDevfile,
			Overrides: &statev1.WorkspaceOverrides{
				Image: "registry.example/ide:10", Env: map[string]string{"B": "3"}, Args: []string{"--debug"},
			},
		},
	).GetWorkspace()
	require.Equal(t, "registry.example/ide:10", changed.GetSpec().GetImage())
	require.Equal(t, "1", changed.GetSpec().GetEnv()["A"])
	require.Equal(t, "3", changed.GetSpec().GetEnv()["B"])
	require.Equal(t, []string{"ide"}, changed.GetSpec().GetCommand())
	require.Equal(t, []string{"--debug"}, changed.GetSpec().GetArgs())
	again := call(
		t,
		admin.workspaces.UpdateWorkspace,
		&statev1.UpdateWorkspaceRequest{
			Workspace: byName("changed"),
			Overrides: &statev1.WorkspaceOverrides{Command: []string{"sh"}},
		},
	).GetWorkspace()
	require.Equal(t, []string{"sh"}, again.GetSpec().GetCommand())
	require.Empty(t, again.GetSpec().GetArgs(), "a new command removes the earlier arguments")

	for name, test := range map[string]struct {
		request *statev1.CreateWorkspaceRequest
		code    fault.Code
		want    string
	}{
		"a template and a devfile": {
			&statev1.CreateWorkspaceRequest{Devfile: aDevfile, Template: "default"},
			errcode.InvalidArgument,
			"not both",
		},
		"a parent": {
			&statev1.CreateWorkspaceRequest{Devfile: aDevfile + "parent: {id: node}\n"},
			errcode.FailedPrecondition,
			"no registry of devfiles is configured",
		},
		"an invalid name": {
			&statev1.CreateWorkspaceRequest{Devfile: strings.Replace(aDevfile, "name: shop", "name: My Shop", 1)},
			errcode.InvalidArgument,
			"metadata.name",
		},
		"a name that begins with a digit": {
			&statev1.CreateWorkspaceRequest{Devfile: strings.Replace(aDevfile, "name: shop", "name: 1shop", 1)},
			errcode.InvalidArgument,
			`metadata.name "1shop" is not a workspace name; give a name`,
		},
		"a given name that begins with a digit": {
			&statev1.CreateWorkspaceRequest{Name: "1shop", Devfile: aDevfile},
			errcode.InvalidArgument,
			"starting with a letter",
		},
		"an invalid override": {
			&statev1.CreateWorkspaceRequest{Name: "w", Devfile: aDevfile, Overrides: &statev1.WorkspaceOverrides{Cpu: "lots"}},
			errcode.InvalidArgument,
			"cpu",
		},
		"the template name of devfiles": {
			&statev1.CreateWorkspaceRequest{Name: "w", Template: "(devfile)"},
			errcode.NotFound,
			"(devfile)",
		},
		"too large a devfile": {
			&statev1.CreateWorkspaceRequest{Devfile: aDevfile + strings.Repeat("#", 64<<10)},
			errcode.PayloadTooLarge,
			"65536",
		},
	} {
		test.request.ProjectId = project
		_, err := admin.workspaces.CreateWorkspace(t.Context(), connect.NewRequest(test.request))
		require.Equal(t, test.code, fault.CodeOf(err), "%s: %v", name, err)
		require.ErrorContains(t, err, test.want, name)
	}
}

// Projects are cloned by the workspace agent, so they need its image.
func TestProjectsNeedAWorkspaceAgent(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, registered := admin.project()
	cloned := &statev1.ClonedProject{
		Name: "shop", Url: "https://git.example/shop.git", Revision: "main", Folder: "src/shop", Depth: 1,
		Remotes: map[string]string{"fork": "git@git.example:ada/shop.git"},
	}
	create := func(name string, projects ...*statev1.ClonedProject) (*statev1.WorkspaceSpec, error) {
		created, err := admin.workspaces.CreateWorkspace(t.Context(), connect.NewRequest(&statev1.CreateWorkspaceRequest{
			Name: name, ProjectId: project, Devfile: aDevfile, Overrides: &statev1.WorkspaceOverrides{Projects: projects},
		}))
		if err != nil {
			return nil, err
		}
		return created.Msg.GetWorkspace().GetSpec(), nil
	}
	_, err := create("with", cloned)
	require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "set agent_image")
	_, err = create("without")
	require.NoError(t, err)
	update := &statev1.UpdateWorkspaceRequest{
		Workspace: byName("without"), Overrides: &statev1.WorkspaceOverrides{Projects: []*statev1.ClonedProject{cloned}},
	}
	_, err = admin.workspaces.UpdateWorkspace(t.Context(), connect.NewRequest(update))
	require.ErrorContains(t, err, "set agent_image")

	call(t, admin.agents.ConfigureAgent, &statev1.ConfigureAgentRequest{
		Id:            registered.GetAgent().GetId(),
		Configuration: &statev1.AgentConfiguration{AgentImage: new("registry.example/workspace-agent:1")},
	})
	spec, err := create("with", cloned)
	require.NoError(t, err)
	require.Len(t, spec.GetProjects(), 1)
	require.True(t, proto.Equal(cloned, spec.GetProjects()[0]), "%v", spec)
	updated := call(t, admin.workspaces.UpdateWorkspace, update).GetWorkspace().GetSpec()
	require.True(t, proto.Equal(cloned, updated.GetProjects()[0]), "%v", updated)
	_, err = create("twice", cloned, cloned)
	require.ErrorContains(t, err, `its folder "src/shop" is that of another project`)
}

func TestUpdateRefusesMoreSecretsThanASecretHolds(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	files := func(sizes map[string]int) *statev1.WorkspaceOverrides {
		o := &statev1.WorkspaceOverrides{SecretFiles: map[string][]byte{}}
		for name, size := range sizes {
			o.SecretFiles[name] = make([]byte, size)
		}
		return o
	}
	update := func(o *statev1.WorkspaceOverrides) *statev1.UpdateWorkspaceRequest {
		return &statev1.UpdateWorkspaceRequest{Workspace: byName("w"), Overrides: o}
	}
	created := call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{
		Name: "w", ProjectId: project, Overrides: files(map[string]int{"a": 400 << 10}),
	}).GetWorkspace()

	refused(t, errcode.PayloadTooLarge, admin.workspaces.UpdateWorkspace, update(files(map[string]int{"b": 200 << 10})))
	after := call(t, admin.workspaces.GetWorkspace, &statev1.GetWorkspaceRequest{Workspace: byName("w")}).GetWorkspace()
	require.Equal(t, created.GetDesiredRevision(), after.GetDesiredRevision())
	require.Equal(t, []string{"a"}, after.GetSpec().GetSecretFiles())

	// Variables are in another Secret, and a shorter value makes room.
	call(t, admin.workspaces.UpdateWorkspace, update(&statev1.WorkspaceOverrides{
		SecretEnv: map[string]string{"TOKEN": strings.Repeat("x", 200<<10)},
	}))
	fits := call(t, admin.workspaces.UpdateWorkspace, update(files(map[string]int{"a": 1, "b": 200 << 10})))
	require.Equal(t, []string{"a", "b"}, fits.GetWorkspace().GetSpec().GetSecretFiles())
}

func TestIdempotencyKeyCreatesOneWorkspace(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	ids := make([]string, 8)
	var asking sync.WaitGroup
	for i := range ids {
		asking.Go(func() {
			response, err := admin.workspaces.CreateWorkspace(
				t.Context(),
				connect.NewRequest(&statev1.CreateWorkspaceRequest{Name: "w", ProjectId: project, IdempotencyKey: "k"}),
			)
			if err == nil {
				ids[i] = response.Msg.GetWorkspace().GetId()
			}
		})
	}
	asking.Wait()
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
	refused(
		t,
		errcode.AlreadyExists,
		admin.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "w", ProjectId: project},
	)
}

func TestRepeatedRequestGetsItsWorkspaceWhateverHasChanged(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, registered := admin.project()
	agent := registered.GetAgent().GetId()
	ada, adas := admin.user(b, "ada")
	scope := statev1.ScopeKind_SCOPE_KIND_PROJECT
	call(t, admin.directory.PutMembership, &statev1.PutMembershipRequest{Membership: &statev1.Membership{
		UserId: ada, Scope: scope, ScopeId: project, Role: statev1.Role_ROLE_DEVELOPER,
	}})
	request := &statev1.CreateWorkspaceRequest{
		Name: "w", ProjectId: project, IdempotencyKey: "k", Overrides: &statev1.WorkspaceOverrides{Cpu: "4"},
	}
	id := call(t, adas.workspaces.CreateWorkspace, request).GetWorkspace().GetId()

	call(t, admin.agents.ConfigureAgent, &statev1.ConfigureAgentRequest{
		Id: agent, Configuration: &statev1.AgentConfiguration{MaxCpu: new("2")},
	})
	require.Equal(t, id, call(t, adas.workspaces.CreateWorkspace, request).GetWorkspace().GetId())
	call(t, admin.agents.RevokeAgent, &statev1.RevokeAgentRequest{Id: agent})
	require.Equal(t, id, call(t, adas.workspaces.CreateWorkspace, request).GetWorkspace().GetId())
	refused(t, errcode.FailedPrecondition, adas.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "x", ProjectId: project, IdempotencyKey: "l"})

	call(t, admin.directory.DeleteMembership,
		&statev1.DeleteMembershipRequest{UserId: ada, Scope: scope, ScopeId: project})
	refused(t, errcode.NotFound, adas.workspaces.CreateWorkspace, request)
}

func TestTerminatedIsPermanent(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "w", ProjectId: project})
	set := func(s statev1.DesiredState) *statev1.SetDesiredStateRequest {
		return &statev1.SetDesiredStateRequest{Workspace: byName("w"), DesiredState: s}
	}
	call(t, admin.workspaces.SetDesiredState, set(statev1.DesiredState_DESIRED_STATE_TERMINATED))
	for _, s := range []statev1.DesiredState{
		statev1.DesiredState_DESIRED_STATE_RUNNING,
		statev1.DesiredState_DESIRED_STATE_STOPPED,
		statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED,
	} {
		refused(t, errcode.WorkspaceTerminated, admin.workspaces.SetDesiredState, set(s))
	}
	refused(
		t,
		errcode.WorkspaceTerminated,
		admin.workspaces.UpdateWorkspace,
		&statev1.UpdateWorkspaceRequest{Workspace: byName("w"), Overrides: &statev1.WorkspaceOverrides{Image: "x:1"}},
	)
	require.Equal(
		t,
		statev1.DesiredState_DESIRED_STATE_TERMINATED,
		call(
			t,
			admin.workspaces.SetDesiredState,
			set(statev1.DesiredState_DESIRED_STATE_TERMINATED),
		).GetWorkspace().
			GetDesiredState(),
	)
}

func TestWatchSendsWorkspacesAndTheirChanges(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "first", ProjectId: project})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := admin.workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{}))
	require.NoError(t, err)
	defer stream.Close()
	next := func() *statev1.WatchWorkspacesResponse {
		require.True(t, stream.Receive(), "%v", stream.Err())
		return stream.Msg()
	}
	seen := next()
	require.True(t, seen.GetInitial())
	require.Equal(t, "first", seen.GetWorkspace().GetName())
	call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "second", ProjectId: project})
	seen = next()
	require.False(t, seen.GetInitial())
	require.Equal(t, "second", seen.GetWorkspace().GetName())
	call(
		t,
		admin.workspaces.SetDesiredState,
		&statev1.SetDesiredStateRequest{Workspace: byName("first"), DesiredState: statev1.DesiredState_DESIRED_STATE_STOPPED},
	)
	seen = next()
	require.Equal(t, "first", seen.GetWorkspace().GetName())
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_STOPPED, seen.GetWorkspace().GetDesiredState())
}

// TestWatchSendsAChangedMessageOfTheSameState holds a termination: what remains changes, the reason does not.
func TestWatchSendsAChangedMessageOfTheSameState(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, agent := admin.project()
	call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "held", ProjectId: project})
	w := call(t, admin.workspaces.SetDesiredState, &statev1.SetDesiredStateRequest{
		Workspace: byName("held"), DesiredState: statev1.DesiredState_DESIRED_STATE_TERMINATED,
	}).GetWorkspace()
	conn, err := dialAgent(t, agent)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := admin.workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{}))
	require.NoError(t, err)
	defer stream.Close()
	for _, message := range []string{"ConfigMap held waits", "Secret held waits"} {
		require.NoError(t, report(conn, agent.GetAgent().GetId(), "dispatcher",
			topology.Cell("local").Applied(agent.GetAgent().GetId(), w.GetId()), events.TypeTerminating,
			events.Terminating{
				WorkspaceID: w.GetId(), DesiredRevision: int(w.GetDesiredRevision()), ObservedAt: time.Now(),
				Reason: "FinalizersRemain", Message: message,
			}))
		for stream.Msg().GetWorkspace().GetMessage() != message {
			require.True(t, stream.Receive(), "no message %q: %v", message, stream.Err())
		}
		require.Equal(t, "FinalizersRemain", stream.Msg().GetWorkspace().GetReason())
	}
}

func TestWorkspaceEventsArePaged(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	stop := b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "w", ProjectId: project})
	for range 2 {
		call(
			t,
			admin.workspaces.SetDesiredState,
			&statev1.SetDesiredStateRequest{Workspace: byName("w"), DesiredState: statev1.DesiredState_DESIRED_STATE_STOPPED},
		)
		call(
			t,
			admin.workspaces.SetDesiredState,
			&statev1.SetDesiredStateRequest{Workspace: byName("w"), DesiredState: statev1.DesiredState_DESIRED_STATE_RUNNING},
		)
	}
	var types []string
	require.Eventually(t, func() bool {
		types = nil
		for token := ""; ; {
			page := call(
				t,
				admin.workspaces.ListWorkspaceEvents,
				&statev1.ListWorkspaceEventsRequest{Workspace: byName("w"), PageSize: 2, PageToken: token},
			)
			for _, e := range page.GetEvents() {
				types = append(types, e.GetType())
			}
			if token = page.GetNextPageToken(); token == "" {
				return len(types) == 5
			}
		}
	}, time.Minute, 10*time.Millisecond, "the outbox publishes on its own time")
	changed := "dev.lockstep.workspace.desired_state_changed.v1"
	require.Equal(t, []string{"dev.lockstep.workspace.created.v1", changed, changed, changed, changed}, types)

	// A restart does not change the state.
	stop()
	b.start(t)
	require.Equal(
		t,
		statev1.DesiredState_DESIRED_STATE_RUNNING,
		call(
			t,
			b.as(t, b.admin).workspaces.GetWorkspace,
			&statev1.GetWorkspaceRequest{Workspace: byName("w")},
		).GetWorkspace().
			GetDesiredState(),
	)
}

func byName(name string) *statev1.WorkspaceReference {
	return &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Name{Name: name}}
}
