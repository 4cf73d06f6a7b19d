package cli

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

func TestFindByName(t *testing.T) {
	t.Parallel()
	all := func() ([]named, error) {
		return []named{
			{id: 1, path: "acme/platform/web"},
			{id: 2, path: "acme/shop/web"},
			{id: 3, path: "acme/shop/db"},
			{id: 4, path: "acme/shop/db/db"},
			{id: 5, path: "acme/old/db", retired: true},
			{id: 6, path: "acme/old/gone", retired: true},
		}, nil
	}
	for text, want := range map[string]int64{
		"12": 12, "acme/shop/web": 2, "platform/web": 1, "shop/db": 3, "gone": 6, "db/db": 4, "acme/shop/db/db": 4,
	} {
		id, err := find("agent", text, all)
		require.NoError(t, err, text)
		require.Equal(t, want, id, text)
	}
	_, err := find("agent", "web", all)
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.ErrorContains(t, err, `several agents are named "web": use one of acme/platform/web (1), acme/shop/web (2)`)
	_, err = find("agent", "none", all)
	require.True(t, fault.Is(err, errcode.NotFound))
	require.ErrorContains(t, err, `agent "none" does not exist, or you may not see it: you can see acme/platform/web (1), `)
	require.NotContains(t, err.Error(), "gone")
	_, err = find("agent", "hop/web", all)
	require.True(t, fault.Is(err, errcode.NotFound), "a part of a name is no name")
	_, err = find("agent", "none", func() ([]named, error) { return nil, nil })
	require.ErrorContains(t, err, "you can see no agent")
}

// fakeCell has a project with an agent, two users and a template, and records requests.
type fakeCell struct {
	statev1connect.UnimplementedDirectoryServiceHandler
	statev1connect.UnimplementedAgentServiceHandler
	statev1connect.UnimplementedWorkspaceServiceHandler

	// reader: the caller is no administrator.
	reader  bool
	member  *statev1.Membership
	created *statev1.CreateWorkspaceRequest
	listed  *statev1.WorkspaceFilter
}

func (f *fakeCell) ListProjects(
	context.Context, *connect.Request[statev1.ListProjectsRequest],
) (*connect.Response[statev1.ListProjectsResponse], error) {
	return connect.NewResponse(&statev1.ListProjectsResponse{Projects: []*statev1.Project{
		{Id: 3, OrganizationId: 1, GroupId: 2, Name: "web", Path: "acme/platform/web"},
	}}), nil
}

func (f *fakeCell) ListOrganizations(
	context.Context, *connect.Request[statev1.ListOrganizationsRequest],
) (*connect.Response[statev1.ListOrganizationsResponse], error) {
	return connect.NewResponse(&statev1.ListOrganizationsResponse{}), nil
}

func (f *fakeCell) ListGroups(
	context.Context, *connect.Request[statev1.ListGroupsRequest],
) (*connect.Response[statev1.ListGroupsResponse], error) {
	return nil, fault.New(errcode.NotFound, "organization 1 does not exist")
}

func (f *fakeCell) ListUsers(
	context.Context, *connect.Request[statev1.ListUsersRequest],
) (*connect.Response[statev1.ListUsersResponse], error) {
	if f.reader {
		return nil, fault.New(errcode.PermissionDenied, "user bob is not an administrator of this cell")
	}
	return connect.NewResponse(&statev1.ListUsersResponse{Users: []*statev1.User{
		{Id: 5, Username: "bob"}, {Id: 4, Username: "alice"},
	}}), nil
}

func (f *fakeCell) WhoAmI(
	context.Context, *connect.Request[statev1.WhoAmIRequest],
) (*connect.Response[statev1.WhoAmIResponse], error) {
	return connect.NewResponse(&statev1.WhoAmIResponse{User: &statev1.User{Id: 5, Username: "bob"}}), nil
}

func (f *fakeCell) ListMemberships(
	context.Context, *connect.Request[statev1.ListMembershipsRequest],
) (*connect.Response[statev1.ListMembershipsResponse], error) {
	return connect.NewResponse(&statev1.ListMembershipsResponse{Memberships: []*statev1.Membership{
		{UserId: 5, Username: "bob", Scope: statev1.ScopeKind_SCOPE_KIND_GROUP, ScopeId: 2, Role: statev1.Role_ROLE_READER},
	}}), nil
}

func (f *fakeCell) PutMembership(
	_ context.Context, r *connect.Request[statev1.PutMembershipRequest],
) (*connect.Response[statev1.PutMembershipResponse], error) {
	f.member = r.Msg.GetMembership()
	return connect.NewResponse(&statev1.PutMembershipResponse{Membership: f.member}), nil
}

func (f *fakeCell) ListAgents(
	context.Context, *connect.Request[statev1.ListAgentsRequest],
) (*connect.Response[statev1.ListAgentsResponse], error) {
	return connect.NewResponse(&statev1.ListAgentsResponse{Agents: []*statev1.Agent{
		{Id: 7, Name: "local", ProjectId: 3}, {Id: 8, Name: "old", ProjectId: 3, Revoked: true},
	}}), nil
}

func (f *fakeCell) CreateWorkspace(
	_ context.Context, r *connect.Request[statev1.CreateWorkspaceRequest],
) (*connect.Response[statev1.CreateWorkspaceResponse], error) {
	f.created = r.Msg
	return connect.NewResponse(&statev1.CreateWorkspaceResponse{Workspace: f.workspace()}), nil
}

func (f *fakeCell) ListWorkspaces(
	_ context.Context, r *connect.Request[statev1.ListWorkspacesRequest],
) (*connect.Response[statev1.ListWorkspacesResponse], error) {
	f.listed = r.Msg.GetFilter()
	return connect.NewResponse(&statev1.ListWorkspacesResponse{Workspaces: []*statev1.Workspace{f.workspace()}}), nil
}

func (f *fakeCell) workspace() *statev1.Workspace {
	return &statev1.Workspace{Name: "mine", ProjectId: 3, AgentId: 7, UserId: 4}
}

// run executes a command line against the fake.
func (f *fakeCell) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	faults := connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler)))
	mux := http.NewServeMux()
	mux.Handle(statev1connect.NewDirectoryServiceHandler(f, faults))
	mux.Handle(statev1connect.NewAgentServiceHandler(f, faults))
	mux.Handle(statev1connect.NewWorkspaceServiceHandler(f, faults))
	server := httptest.NewServer(mux)
	defer server.Close()
	defer closeIdle()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("t\n"), 0o600))
	return run(t, append([]string{"--server", server.URL, "--token-file", token}, args...)...)
}

func TestCommandsTakeAndShowNames(t *testing.T) {
	t.Parallel()
	f := &fakeCell{}
	code, out, stderr := f.run(t, "ws", "create", "mine", "--project", "acme/platform/web", "--agent", "local")
	require.Zero(t, code, stderr)
	require.EqualValues(t, 3, f.created.GetProjectId())
	require.EqualValues(t, 7, f.created.GetAgentId())
	require.Regexp(t, `mine .* acme/platform/web +local`, out)

	code, out, stderr = f.run(t, "ws", "list", "--project", "web", "--agent", "7", "--user", "alice", "-o", "json")
	require.Zero(t, code, stderr)
	require.EqualValues(t, 3, f.listed.GetProjectId())
	require.EqualValues(t, 7, f.listed.GetAgentId())
	require.EqualValues(t, 4, f.listed.GetUserId())
	require.Contains(t, out, `"project_id": "3"`, "ids stay in JSON")

	for args, want := range map[string]string{
		"ws create x --project wep":          `project "wep" does not exist, or you may not see it: you can see acme/platform/web (3)`,
		"ws create x --agent old2":           `agent "old2" does not exist, or you may not see it: you can see acme/platform/web/local (7)`,
		"ws list --user carol":               `user "carol" does not exist, or you may not see it: you can see alice (4), bob (5)`,
		"member list --group acme/x":         `group "acme/x" does not exist, or you may not see it: you can see acme/platform (2)`,
		"member list --organization other":   `you can see acme (1)`,
		"member remove bob --project acme/x": `project "acme/x" does not exist`,
	} {
		code, _, stderr := f.run(t, strings.Fields(args)...)
		require.Equal(t, 5, code, args)
		require.Contains(t, stderr, want)
	}
	f.reader = true
	code, _, stderr = f.run(t, "ws", "list", "--user", "bob")
	require.Zero(t, code, "everybody knows their own name: %s", stderr)
}

func TestMemberCommands(t *testing.T) {
	t.Parallel()
	f := &fakeCell{reader: true}
	code, _, stderr := f.run(t, "member", "add", "alice", "--group", "acme/platform", "--role", "developer")
	require.Zero(t, code, stderr)
	require.Equal(t, "alice", f.member.GetUsername(), "the service finds users: only administrators can list them")
	require.Equal(t, statev1.ScopeKind_SCOPE_KIND_GROUP, f.member.GetScope())
	require.EqualValues(t, 2, f.member.GetScopeId())
	require.Equal(t, statev1.Role_ROLE_DEVELOPER, f.member.GetRole())
	code, _, stderr = f.run(t, "member", "add", "9", "--organization", "acme", "--role", "owner")
	require.Zero(t, code, stderr)
	require.EqualValues(t, 9, f.member.GetUserId())
	require.EqualValues(t, 1, f.member.GetScopeId())

	code, out, stderr := f.run(t, "member", "list", "--group", "platform")
	require.Zero(t, code, stderr)
	require.Regexp(t, `bob +5 +reader +acme/platform`, out)
	code, out, stderr = f.run(t, "whoami")
	require.Zero(t, code, stderr)
	require.Regexp(t, `user +bob`, out)
	require.Regexp(t, `role +reader of acme/platform`, out)
	code, out, stderr = f.run(t, "user", "list")
	require.Equal(t, 4, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "not an administrator")
	f.reader = false
	code, out, stderr = f.run(t, "user", "list")
	require.Zero(t, code, stderr)
	require.Regexp(t, `(?s)alice.*bob`, out)

	for args, want := range map[string]string{
		"member add x --role king --project web":             "must be reader, developer, maintainer or owner",
		"member add x --role owner":                          "set one of --project, --group and --organization",
		"member list --project web --group acme/platform":    "set one of --project, --group and --organization",
		"user block alice":                                   "confirm it with --yes",
		"member list --project web --organization acme":      "set one of",
		"member remove x --project web --organization acme ": "set one of",
	} {
		code, _, stderr := f.run(t, strings.Fields(args)...)
		require.Equal(t, 2, code, args)
		require.Contains(t, stderr, want)
	}
	_, out, _ = f.run(t, "member", "--help")
	require.Contains(t, out, "maintainer  manages all workspaces")
}

func TestNamesAreCompleted(t *testing.T) {
	t.Parallel()
	f := &fakeCell{}
	for args, want := range map[string]string{
		"ws create x --project ":     "acme/platform/web\tproject 3",
		"ws list --agent ":           "local\tacme/platform/web/local",
		"agent get ":                 "local\tacme/platform/web/local",
		"token create x --user ":     "alice\tuser 4",
		"member add ":                "alice\tuser 4",
		"member add x --role ":       "developer",
		"member list --group ":       "acme/platform\tgroup 2",
		"ws get ":                    "mine\t",
		"deploys clusters release x": "",
	} {
		words := strings.Split(args, " ")
		_, out, _ := f.run(t, append([]string{"__complete"}, words...)...)
		require.Contains(t, out, want, args)
		require.NotContains(t, out, "old")
	}
}
