package state_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// as is the API as one user sees it.
type as struct {
	t           *testing.T
	directory   statev1connect.DirectoryServiceClient
	tokens      statev1connect.TokenServiceClient
	agents      statev1connect.AgentServiceClient
	templates   statev1connect.TemplateServiceClient
	workspaces  statev1connect.WorkspaceServiceClient
	subscribers statev1connect.SubscriberServiceClient
}

type bearer string

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		r.Header().Set("Authorization", "Bearer "+string(b))
		return next(ctx, r)
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(b))
		return conn
	}
}

func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (b *bundle) as(t *testing.T, token string) as {
	t.Helper()
	o := connect.WithInterceptors(fault.NewInterceptor(nil), bearer(token))
	return as{
		t,
		statev1connect.NewDirectoryServiceClient(b.http, b.url, o),
		statev1connect.NewTokenServiceClient(b.http, b.url, o),
		statev1connect.NewAgentServiceClient(b.http, b.url, o),
		statev1connect.NewTemplateServiceClient(b.http, b.url, o),
		statev1connect.NewWorkspaceServiceClient(b.http, b.url, o),
		statev1connect.NewSubscriberServiceClient(b.http, b.url, o),
	}
}

func call[Q, A any](
	t *testing.T,
	rpc func(context.Context, *connect.Request[Q]) (*connect.Response[A], error),
	request *Q,
) *A {
	t.Helper()
	response, err := rpc(t.Context(), connect.NewRequest(request))
	require.NoError(t, err)
	return response.Msg
}

func refused[Q, A any](
	t *testing.T,
	code fault.Code,
	rpc func(context.Context, *connect.Request[Q]) (*connect.Response[A], error),
	request *Q,
) {
	t.Helper()
	_, err := rpc(t.Context(), connect.NewRequest(request))
	require.Error(t, err)
	require.Equal(t, code, fault.CodeOf(err), "%v", err)
}

// project makes organization, group, project and agent.
func (a as) project() (project int64, agent *statev1.RegisterAgentResponse) {
	a.t.Helper()
	const name = "acme"
	organization := call(
		a.t,
		a.directory.CreateOrganization,
		&statev1.CreateOrganizationRequest{Name: name},
	).GetOrganization()
	group := call(
		a.t,
		a.directory.CreateGroup,
		&statev1.CreateGroupRequest{OrganizationId: organization.GetId(), Name: name},
	).GetGroup()
	project = call(
		a.t,
		a.directory.CreateProject,
		&statev1.CreateProjectRequest{GroupId: group.GetId(), Name: name},
	).GetProject().
		GetId()
	key, err := seal.GenerateKey()
	require.NoError(a.t, err)
	return project, call(
		a.t,
		a.agents.RegisterAgent,
		&statev1.RegisterAgentRequest{Name: name, ProjectId: project, CurvePublicKey: key.Public()},
	)
}

// user makes a user with a token.
func (a as) user(b *bundle, name string) (int64, as) {
	a.t.Helper()
	u := call(a.t, a.directory.CreateUser, &statev1.CreateUserRequest{Username: name}).GetUser()
	token := call(a.t, a.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "test", UserId: u.GetId()})
	return u.GetId(), b.as(a.t, token.GetValue())
}

func TestDirectoryAndPermissions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, agent := admin.project()
	require.NotEmpty(t, agent.GetToken())
	require.NotEmpty(t, agent.GetSealerPublicKey())
	require.Equal(t, []string{b.nats.ClientURL()}, agent.GetNatsUrls())
	ada, adas := admin.user(b, "ada")
	_, bobs := admin.user(b, "bob")

	// Without a role the project does not exist.
	refused(
		t,
		errcode.NotFound,
		adas.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "w", ProjectId: project},
	)
	require.Empty(t, call(t, adas.directory.ListProjects, &statev1.ListProjectsRequest{}).GetProjects())
	// A reader sees it and creates nothing.
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
	put(statev1.Role_ROLE_READER)
	require.Equal(
		t,
		"acme/acme/acme",
		call(t, adas.directory.ListProjects, &statev1.ListProjectsRequest{}).GetProjects()[0].GetPath(),
	)
	refused(
		t,
		errcode.PermissionDenied,
		adas.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "w", ProjectId: project},
	)
	// A developer creates, also without saying where there is only one project and agent.
	put(statev1.Role_ROLE_DEVELOPER)
	w := call(t, adas.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "w"}).GetWorkspace()
	require.Equal(t, ada, w.GetUserId())
	require.Equal(t, fmt.Sprintf("ws-%d-w", agent.GetAgent().GetId()), w.GetNamespace())
	refused(
		t,
		errcode.PermissionDenied,
		adas.agents.RevokeAgent,
		&statev1.RevokeAgentRequest{Id: agent.GetAgent().GetId()},
	)
	refused(t, errcode.PermissionDenied, adas.directory.CreateUser, &statev1.CreateUserRequest{Username: "eve"})
	refused(
		t,
		errcode.PermissionDenied,
		adas.directory.PutMembership,
		&statev1.PutMembershipRequest{
			Membership: &statev1.Membership{
				UserId:  ada,
				Scope:   statev1.ScopeKind_SCOPE_KIND_PROJECT,
				ScopeId: project,
				Role:    statev1.Role_ROLE_OWNER,
			},
		},
	)
	// A stranger sees nothing of it.
	refused(t, errcode.NotFound, bobs.workspaces.GetWorkspace, &statev1.GetWorkspaceRequest{Workspace: byName("w")})
	refused(
		t,
		errcode.NotFound,
		bobs.workspaces.SetDesiredState,
		&statev1.SetDesiredStateRequest{Workspace: byName("w"), DesiredState: statev1.DesiredState_DESIRED_STATE_STOPPED},
	)
	require.Empty(t, call(t, bobs.workspaces.ListWorkspaces, &statev1.ListWorkspacesRequest{}).GetWorkspaces())

	// A role in the organization reaches down; without it everything is gone again.
	call(
		t,
		admin.directory.DeleteMembership,
		&statev1.DeleteMembershipRequest{UserId: ada, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project},
	)
	refused(t, errcode.NotFound, adas.workspaces.GetWorkspace, &statev1.GetWorkspaceRequest{Workspace: byName("w")})
	organization := call(t, admin.directory.ListOrganizations, &statev1.ListOrganizationsRequest{}).GetOrganizations()[0].GetId()
	call(
		t,
		admin.directory.PutMembership,
		&statev1.PutMembershipRequest{
			Membership: &statev1.Membership{
				UserId:  ada,
				Scope:   statev1.ScopeKind_SCOPE_KIND_ORGANIZATION,
				ScopeId: organization,
				Role:    statev1.Role_ROLE_MAINTAINER,
			},
		},
	)
	require.Len(t, call(t, adas.workspaces.ListWorkspaces, &statev1.ListWorkspacesRequest{}).GetWorkspaces(), 1)

	// Who is blocked may nothing.
	call(t, admin.directory.BlockUser, &statev1.BlockUserRequest{Id: ada})
	refused(t, errcode.PermissionDenied, adas.directory.WhoAmI, &statev1.WhoAmIRequest{})
}

func TestTokensAreShownOnceAndEndWhenRevokedOrExpired(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.start(t)
	admin := b.as(t, b.admin)
	made := call(
		t,
		admin.tokens.CreateToken,
		&statev1.CreateTokenRequest{Name: "laptop", ExpiresAt: timestamppb.New(time.Now().Add(time.Hour))},
	)
	mine := b.as(t, made.GetValue())
	require.Equal(t, "admin", call(t, mine.directory.WhoAmI, &statev1.WhoAmIRequest{}).GetUser().GetUsername())
	call(t, admin.tokens.RevokeToken, &statev1.RevokeTokenRequest{Id: made.GetToken().GetId()})
	refused(t, errcode.Unauthenticated, mine.directory.WhoAmI, &statev1.WhoAmIRequest{})
	refused(t, errcode.Unauthenticated, b.as(t, "").directory.WhoAmI, &statev1.WhoAmIRequest{})
	refused(t, errcode.Unauthenticated, b.as(t, "lsp_nonsense").directory.WhoAmI, &statev1.WhoAmIRequest{})
	refused(
		t,
		errcode.InvalidArgument,
		admin.tokens.CreateToken,
		&statev1.CreateTokenRequest{Name: "late", ExpiresAt: timestamppb.New(time.Now().Add(-time.Hour))},
	)
	_, eve := admin.user(b, "eve")
	refused(t, errcode.NotFound, eve.tokens.RevokeToken, &statev1.RevokeTokenRequest{Id: made.GetToken().GetId()})
	refused(
		t,
		errcode.PermissionDenied,
		eve.tokens.CreateToken,
		&statev1.CreateTokenRequest{Name: "steal", UserId: made.GetToken().GetUserId()},
	)
	for _, token := range call(t, admin.tokens.ListTokens, &statev1.ListTokensRequest{}).GetTokens() {
		require.Equal(t, token.GetId() == made.GetToken().GetId(), token.GetRevoked())
	}
}

func TestInvalidInputChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	for name, request := range map[string]*statev1.CreateWorkspaceRequest{
		"name":     {Name: "Not A Slug", ProjectId: project},
		"long":     {Name: "a123456789012345678901234567890123456789x", ProjectId: project},
		"quantity": {Name: "w", ProjectId: project, Overrides: &statev1.WorkspaceOverrides{Cpu: "much"}},
		"port":     {Name: "w", ProjectId: project, Overrides: &statev1.WorkspaceOverrides{Ports: []*statev1.Port{{Name: "http", Number: 70000}}}},
		"secret":   {Name: "w", ProjectId: project, Overrides: &statev1.WorkspaceOverrides{SecretEnv: map[string]string{"A-B": "x"}}},
		"file":     {Name: "w", ProjectId: project, Overrides: &statev1.WorkspaceOverrides{SecretFiles: map[string][]byte{"../up": []byte("x")}}},
		"key":      {Name: "w", ProjectId: project, IdempotencyKey: string(make([]byte, 65))},
	} {
		t.Run(name, func(t *testing.T) { refused(t, errcode.InvalidArgument, admin.workspaces.CreateWorkspace, request) })
	}
	refused(
		t,
		errcode.NotFound,
		admin.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "w", ProjectId: 999},
	)
	refused(
		t,
		errcode.NotFound,
		admin.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "w", ProjectId: project, AgentId: 999},
	)
	refused(
		t,
		errcode.NotFound,
		admin.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "w", ProjectId: project, Template: "none"},
	)
	refused(t, errcode.PayloadTooLarge, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{
		Name:      "w",
		ProjectId: project,
		Overrides: &statev1.WorkspaceOverrides{SecretFiles: map[string][]byte{"big": make([]byte, 600<<10)}},
	})
	require.Empty(
		t,
		call(
			t,
			admin.workspaces.ListWorkspaces,
			&statev1.ListWorkspacesRequest{Filter: &statev1.WorkspaceFilter{IncludeTerminated: true}},
		).GetWorkspaces(),
	)
}

const aDevfile = `
schemaVersion: 2.2.0
metadata: {name: shop}
components: [{name: tools, container: {image: "registry.example/ide:9", command: [ide], args: [--serve], env: [{name: A, value: "1"}, {name: B, value: "2"}]}}]
`

func TestWorkspaceFromADevfile(t *testing.T) {
	t.Parallel()
	b := setup(t)
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
	require.Empty(t, again.GetSpec().GetArgs(), "a new command comes without the arguments of the one before")

	for name, test := range map[string]struct {
		request *statev1.CreateWorkspaceRequest
		code    fault.Code
		says    string
	}{
		"a template too":          {&statev1.CreateWorkspaceRequest{Devfile: aDevfile, Template: "default"}, errcode.InvalidArgument, "not both"},
		"what is not done":        {&statev1.CreateWorkspaceRequest{Devfile: aDevfile + "parent: {id: node}\n"}, errcode.InvalidArgument, "parent: is not fetched"},
		"a name that is none":     {&statev1.CreateWorkspaceRequest{Devfile: strings.Replace(aDevfile, "name: shop", "name: My Shop", 1)}, errcode.InvalidArgument, "metadata.name"},
		"what overrides spoil":    {&statev1.CreateWorkspaceRequest{Name: "w", Devfile: aDevfile, Overrides: &statev1.WorkspaceOverrides{Cpu: "lots"}}, errcode.InvalidArgument, "cpu"},
		"no devfile but its name": {&statev1.CreateWorkspaceRequest{Name: "w", Template: "(devfile)"}, errcode.NotFound, "(devfile)"},
		"too large a devfile":     {&statev1.CreateWorkspaceRequest{Devfile: aDevfile + strings.Repeat("#", 64<<10)}, errcode.PayloadTooLarge, "65536"},
	} {
		test.request.ProjectId = project
		_, err := admin.workspaces.CreateWorkspace(t.Context(), connect.NewRequest(test.request))
		require.Equal(t, test.code, fault.CodeOf(err), "%s: %v", name, err)
		require.ErrorContains(t, err, test.says, name)
	}
}

func TestIdempotencyKeyCreatesOneWorkspace(t *testing.T) {
	t.Parallel()
	b := setup(t)
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

func TestTerminatedIsPermanent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "w", ProjectId: project})
	set := func(s statev1.DesiredState) *statev1.SetDesiredStateRequest {
		return &statev1.SetDesiredStateRequest{Workspace: byName("w"), DesiredState: s}
	}
	call(t, admin.workspaces.SetDesiredState, set(statev1.DesiredState_DESIRED_STATE_TERMINATED))
	for _, s := range []statev1.DesiredState{statev1.DesiredState_DESIRED_STATE_RUNNING, statev1.DesiredState_DESIRED_STATE_STOPPED, statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED} {
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
	b := setup(t)
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

func TestWorkspaceEventsArePaged(t *testing.T) {
	t.Parallel()
	b := setup(t)
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

	// The service comes back to the same state.
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

func TestLargeDecompressedRequestIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.start(t)
	stranger := statev1connect.NewDirectoryServiceClient(b.http, b.url, connect.WithSendGzip())
	_, err := stranger.CreateOrganization(
		t.Context(),
		connect.NewRequest(&statev1.CreateOrganizationRequest{Name: strings.Repeat("o", 5<<20)}),
	)
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), "%v", err)
	_, err = stranger.CreateOrganization(
		t.Context(),
		connect.NewRequest(&statev1.CreateOrganizationRequest{Name: strings.Repeat("o", 3<<20)}),
	)
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err), "%v", err)
}
