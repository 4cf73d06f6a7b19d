package state_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/persontoken"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// gateway signs tokens for people, as a gateway of the cell does.
type gateway struct{ *persontoken.Signer }

// withGateway configures a gateway.
func (b *fixture) withGateway(t *testing.T) gateway {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	text, err := persontoken.FormatPublicKey(public)
	require.NoError(t, err)
	b.cfg.Gateway.PublicKeys, b.cfg.Gateway.URL = []string{text}, "https://ws.example.com"
	require.Empty(t, b.cfg.Validate())
	signer, err := persontoken.NewSigner(private, topology.Cell(b.cfg.Cell.Name))
	require.NoError(t, err)
	return gateway{signer}
}

// sign returns a token for a user.
func (g gateway) sign(t *testing.T, user int64, scopes ...persontoken.Scope) string {
	t.Helper()
	token, err := g.Sign(user, scopes, time.Now())
	require.NoError(t, err)
	return token
}

// member makes a user who is a developer of a project.
func (a as) member(b *fixture, name string, project int64) (int64, as) {
	a.t.Helper()
	id, user := a.user(b, name)
	call(a.t, a.directory.PutMembership, &statev1.PutMembershipRequest{Membership: &statev1.Membership{
		UserId: id, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project, Role: statev1.Role_ROLE_DEVELOPER,
	}})
	return id, user
}

// theWorkspace names the workspace w of these tests.
func theWorkspace() *statev1.WorkspaceReference {
	return &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Name{Name: "w"}}
}

// desire changes the workspace w.
func desire(state statev1.DesiredState) *statev1.SetDesiredStateRequest {
	return &statev1.SetDesiredStateRequest{Workspace: theWorkspace(), DesiredState: state}
}

func TestGatewayActsForAPersonWithinTheScopesOfItsToken(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	g := b.withGateway(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	ada, adas := admin.member(b, "ada", project)
	bob, _ := admin.member(b, "bob", project)
	eve, _ := admin.user(b, "eve")
	call(t, adas.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "w"})
	call(t, adas.workspaces.SetDesiredState, desire(statev1.DesiredState_DESIRED_STATE_STOPPED))
	start := desire(statev1.DesiredState_DESIRED_STATE_RUNNING)
	starts, creates := persontoken.ScopeStartWorkspaces, persontoken.ScopeCreateTokens

	// Nobody else's workspace is started.
	refused(t, errcode.PermissionDenied, b.as(t, g.sign(t, bob, starts)).workspaces.SetDesiredState, start)
	refused(t, errcode.NotFound, b.as(t, g.sign(t, eve, starts)).workspaces.SetDesiredState, start)
	refused(t, errcode.NotFound, b.as(t, g.sign(t, 1, starts)).workspaces.SetDesiredState, start) // the administrator
	refused(t, errcode.PermissionDenied, b.as(t, g.sign(t, ada, creates)).workspaces.SetDesiredState, start)
	for _, other := range []statev1.DesiredState{
		statev1.DesiredState_DESIRED_STATE_STOPPED, statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED,
		statev1.DesiredState_DESIRED_STATE_TERMINATED,
	} {
		as := b.as(t, g.sign(t, ada, starts, creates))
		refused(t, errcode.PermissionDenied, as.workspaces.SetDesiredState, desire(other))
	}
	w := call(t, b.as(t, g.sign(t, ada, starts)).workspaces.SetDesiredState, start).GetWorkspace()
	require.Equal(t, statev1.DesiredState_DESIRED_STATE_RUNNING, w.GetDesiredState())

	// Nothing else is permitted.
	all := b.as(t, g.sign(t, ada, starts, creates))
	refused(t, errcode.PermissionDenied, all.directory.WhoAmI, &statev1.WhoAmIRequest{})
	refused(t, errcode.PermissionDenied, all.workspaces.GetWorkspace, &statev1.GetWorkspaceRequest{
		Workspace: theWorkspace(),
	})
	refused(t, errcode.PermissionDenied, all.tokens.ListTokens, &statev1.ListTokensRequest{})
	refused(t, errcode.PermissionDenied, all.tokens.RevokeToken, &statev1.RevokeTokenRequest{Own: true})
	refused(t, errcode.PermissionDenied, all.tokens.ExchangeToken, &statev1.ExchangeTokenRequest{
		Audience: []string{"deploys"},
	})
	stream, err := all.workspaces.WatchWorkspaces(t.Context(), connect.NewRequest(&statev1.WatchWorkspacesRequest{}))
	require.NoError(t, err)
	require.False(t, stream.Receive())
	require.Equal(t, errcode.PermissionDenied, fault.CodeOf(stream.Err()), "%v", stream.Err())
	require.NoError(t, stream.Close())
}

func TestGatewayCreatesTokensOfThePersonOnly(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	g := b.withGateway(t)
	b.start(t)
	admin := b.as(t, b.admin)
	ada, _ := admin.user(b, "ada")
	bob, _ := admin.user(b, "bob")
	creates := persontoken.ScopeCreateTokens
	expiry := timestamppb.New(time.Now().Add(time.Hour))
	request := &statev1.CreateTokenRequest{Name: "laptop", ExpiresAt: expiry}

	of := b.as(t, g.sign(t, ada, creates))
	refused(t, errcode.PermissionDenied, of.tokens.CreateToken, &statev1.CreateTokenRequest{
		Name: "laptop", ExpiresAt: expiry, UserId: bob,
	})
	refused(t, errcode.InvalidArgument, of.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "laptop"})
	refused(t, errcode.InvalidArgument, of.tokens.CreateToken, &statev1.CreateTokenRequest{
		Name: "laptop", ExpiresAt: timestamppb.New(time.Now().Add(100 * 24 * time.Hour)),
	})
	made := call(t, of.tokens.CreateToken, request)
	require.Equal(t, ada, made.GetToken().GetUserId())
	require.Equal(t, statev1.TokenScope_TOKEN_SCOPE_ADMIN, made.GetToken().GetScope())
	require.Equal(t, "ada", call(t, b.as(t, made.GetValue()).directory.WhoAmI, &statev1.WhoAmIRequest{}).
		GetUser().GetUsername())

	// A gateway that somebody took over does not make itself an administrator of the cell.
	byAdmin := b.as(t, g.sign(t, 1, creates))
	refused(t, errcode.PermissionDenied, byAdmin.tokens.CreateToken, &statev1.CreateTokenRequest{
		Name: "laptop", ExpiresAt: expiry, Scope: statev1.TokenScope_TOKEN_SCOPE_ADMIN,
	})
	made = call(t, byAdmin.tokens.CreateToken, request)
	require.Equal(t, statev1.TokenScope_TOKEN_SCOPE_WRITE, made.GetToken().GetScope())
	refused(t, errcode.PermissionDenied, b.as(t, made.GetValue()).directory.CreateUser,
		&statev1.CreateUserRequest{Username: "mallory"})

	call(t, admin.directory.BlockUser, &statev1.BlockUserRequest{Id: ada})
	refused(t, errcode.PermissionDenied, of.tokens.CreateToken, request)
	refused(t, errcode.Unauthenticated, b.as(t, g.sign(t, 99, creates)).tokens.CreateToken, request)
}

func TestGatewayIsFoundWithoutSignIn(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.withGateway(t)
	b.start(t)
	for _, options := range [][]connect.ClientOption{
		nil, {connect.WithInterceptors(bearer(b.admin))}, {connect.WithInterceptors(bearer("expired"))},
	} {
		client := statev1connect.NewGatewayServiceClient(b.http, b.url, options...)
		require.Equal(t, "https://ws.example.com", call(t, client.GetGateway, &statev1.GetGatewayRequest{}).GetUrl())
	}
	workspaces := statev1connect.NewWorkspaceServiceClient(
		b.http, b.url, connect.WithInterceptors(fault.NewInterceptor(nil)))
	refused(t, errcode.Unauthenticated, workspaces.ListWorkspaces, &statev1.ListWorkspacesRequest{})
}

func TestTokensOfOtherGatewaysAreRefused(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	stranger := b.withGateway(t)
	old := b.cfg.Gateway.PublicKeys
	b.withGateway(t)
	b.start(t)
	admin := b.as(t, b.admin)
	request := &statev1.CreateTokenRequest{Name: "x", ExpiresAt: timestamppb.New(time.Now().Add(time.Hour))}
	token := stranger.sign(t, 1, persontoken.ScopeCreateTokens)
	refused(t, errcode.Unauthenticated, b.as(t, token).tokens.CreateToken, request)
	refused(t, errcode.Unauthenticated, b.as(t, token).directory.WhoAmI, &statev1.WhoAmIRequest{})
	// An access token is none of a gateway.
	refused(t, errcode.Unauthenticated, b.as(t, admin.exchange(t, "state")).tokens.CreateToken, request)

	b.cfg.Gateway.URL, b.cfg.Gateway.PublicKeys = "http://ws.example.com", []string{old[0], "ssh-rsa AAAA"}
	require.Len(t, b.cfg.Validate(), 2)
	for _, bad := range []string{"https://", "https://u:p@ws.example.com", "https://ws.example.com/x", "ws.example.com"} {
		b.cfg.Gateway.URL = bad
		require.Len(t, b.cfg.Validate(), 2, bad)
	}
}
