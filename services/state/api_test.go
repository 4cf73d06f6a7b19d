package state_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// as is an API client of one user.
type as struct {
	t           *testing.T
	directory   statev1connect.DirectoryServiceClient
	tokens      statev1connect.TokenServiceClient
	agents      statev1connect.AgentServiceClient
	templates   statev1connect.TemplateServiceClient
	workspaces  statev1connect.WorkspaceServiceClient
	subscribers statev1connect.SubscriberServiceClient
	moves       statev1connect.MoveServiceClient
	sshKeys     statev1connect.SSHKeyServiceClient
	pullSecrets statev1connect.PullSecretServiceClient
	shares      statev1connect.WorkspaceAccessServiceClient
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

func (b *fixture) as(t *testing.T, token string) as {
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
		statev1connect.NewMoveServiceClient(b.http, b.url, o),
		statev1connect.NewSSHKeyServiceClient(b.http, b.url, o),
		statev1connect.NewPullSecretServiceClient(b.http, b.url, o),
		statev1connect.NewWorkspaceAccessServiceClient(b.http, b.url, o),
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

// project creates an organization, a group, a project and an agent.
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
func (a as) user(b *fixture, name string) (int64, as) {
	a.t.Helper()
	u := call(a.t, a.directory.CreateUser, &statev1.CreateUserRequest{Username: name}).GetUser()
	token := call(a.t, a.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "test", UserId: u.GetId()})
	return u.GetId(), b.as(a.t, token.GetValue())
}

func TestDirectoryAndPermissions(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.cfg.Workspace.NamespacePrefix = "dev-"
	b.start(t)
	admin := b.as(t, b.admin)
	project, agent := admin.project()
	require.NotEmpty(t, agent.GetToken())
	require.NotEmpty(t, agent.GetSealerPublicKey())
	require.Equal(t, "dev-", agent.GetAgent().GetNamespacePrefix())
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
	// A developer creates workspaces. Project and agent may be omitted if there is only one.
	put(statev1.Role_ROLE_DEVELOPER)
	w := call(t, adas.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "w"}).GetWorkspace()
	require.Equal(t, ada, w.GetUserId())
	require.Equal(t, fmt.Sprintf("dev-%d-w", agent.GetAgent().GetId()), w.GetNamespace())
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
	// A user without a role cannot read it.
	refused(t, errcode.NotFound, bobs.workspaces.GetWorkspace, &statev1.GetWorkspaceRequest{Workspace: byName("w")})
	refused(
		t,
		errcode.NotFound,
		bobs.workspaces.SetDesiredState,
		&statev1.SetDesiredStateRequest{Workspace: byName("w"), DesiredState: statev1.DesiredState_DESIRED_STATE_STOPPED},
	)
	require.Empty(t, call(t, bobs.workspaces.ListWorkspaces, &statev1.ListWorkspacesRequest{}).GetWorkspaces())

	// A role in the organization is inherited. Without it nothing is visible.
	call(
		t,
		admin.directory.DeleteMembership,
		&statev1.DeleteMembershipRequest{UserId: ada, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project},
	)
	refused(t, errcode.NotFound, adas.workspaces.GetWorkspace, &statev1.GetWorkspaceRequest{Workspace: byName("w")})
	organization := call(t, admin.directory.ListOrganizations,
		&statev1.ListOrganizationsRequest{}).GetOrganizations()[0].GetId()
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

	// A blocked user has no permissions.
	call(t, admin.directory.BlockUser, &statev1.BlockUserRequest{Id: ada})
	refused(t, errcode.PermissionDenied, adas.directory.WhoAmI, &statev1.WhoAmIRequest{})
}

func TestAgentsOfAProjectAreLimited(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.cfg.Agents.MaxPerProject = 2
	b.start(t)
	admin := b.as(t, b.admin)
	project, first := admin.project()
	key, err := seal.GenerateKey()
	require.NoError(t, err)
	register := func(name string) error {
		_, err := admin.agents.RegisterAgent(t.Context(), connect.NewRequest(&statev1.RegisterAgentRequest{
			ProjectId: project, Name: name, CurvePublicKey: key.Public(),
		}))
		return err
	}
	require.NoError(t, register("second"))
	for range 2 { // a revocation makes no room at once: each registration leaves rows
		err := register("third")
		require.Equal(t, errcode.ResourceExhausted, fault.CodeOf(err))
		require.ErrorContains(t, err, "has 2 agents, the maximum: revoke one")
		call(t, admin.agents.RevokeAgent, &statev1.RevokeAgentRequest{Id: first.GetAgent().GetId()})
	}
}

func TestWatchEndsWhenTheCallerLosesAccess(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	for name, c := range map[string]struct {
		end  func(user int64)
		code fault.Code
	}{
		"blocked": {
			func(user int64) { call(t, admin.directory.BlockUser, &statev1.BlockUserRequest{Id: user}) },
			errcode.PermissionDenied,
		},
		"removed": {
			func(user int64) {
				call(t, admin.directory.DeleteMembership, &statev1.DeleteMembershipRequest{
					UserId: user, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project,
				})
			}, errcode.Unavailable,
		},
	} {
		id, user := admin.user(b, name)
		call(t, admin.directory.PutMembership, &statev1.PutMembershipRequest{Membership: &statev1.Membership{
			UserId: id, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project, Role: statev1.Role_ROLE_READER,
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // less than authorizeInterval
		defer cancel()
		stream, err := user.workspaces.WatchWorkspaces(ctx, connect.NewRequest(
			&statev1.WatchWorkspacesRequest{Filter: &statev1.WorkspaceFilter{ProjectId: project}}))
		require.NoError(t, err)
		defer stream.Close()
		c.end(id)
		require.False(t, stream.Receive())
		require.Equal(t, c.code, fault.CodeOf(stream.Err()), "%s: %v", name, stream.Err())
	}
}

func TestInvalidInputChangesNothing(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	for name, request := range map[string]*statev1.CreateWorkspaceRequest{
		"name":     {Name: "Not A Slug", ProjectId: project},
		"long":     {Name: "a123456789012345678901234567890123456789x", ProjectId: project},
		"quantity": {Name: "w", ProjectId: project, Overrides: &statev1.WorkspaceOverrides{Cpu: "much"}},
		"port": {
			Name:      "w",
			ProjectId: project,
			Overrides: &statev1.WorkspaceOverrides{Ports: []*statev1.Port{{Name: "http", Number: 70000}}},
		},
		"secret": {
			Name:      "w",
			ProjectId: project,
			Overrides: &statev1.WorkspaceOverrides{SecretEnv: map[string]string{"A-B": "x"}},
		},
		"file": {
			Name:      "w",
			ProjectId: project,
			Overrides: &statev1.WorkspaceOverrides{SecretFiles: map[string][]byte{"../up": []byte("x")}},
		},
		"key": {Name: "w", ProjectId: project, IdempotencyKey: string(make([]byte, 65))},
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

func TestLargeDecompressedRequestIsRefused(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	stranger := statev1connect.NewDirectoryServiceClient(b.http, b.url, connect.WithSendGzip())
	admin := statev1connect.NewDirectoryServiceClient(
		b.http, b.url, connect.WithSendGzip(), connect.WithInterceptors(bearer(b.admin)),
	)
	_, err := admin.CreateOrganization(
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
