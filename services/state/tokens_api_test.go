package state_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/routable"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestTokensAreShownOnceAndEndWhenRevokedOrExpired(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
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

// TestTokensOfBothFormsAreValid is about tokens of older versions, which the bootstrap token stands for.
func TestTokensOfBothFormsAreValid(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	require.NotContains(t, b.admin, ".", "the old form")
	admin := b.as(t, b.admin)
	eveID, _ := admin.user(b, "eve")
	made := call(t, admin.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "laptop", UserId: eveID})
	parsed, err := routable.Parse(made.GetValue())
	require.NoError(t, err)
	require.Equal(t, routable.Token{
		Prefix: routable.Personal, Payload: routable.Payload{Cell: topology.Cell(b.cfg.Cell.Name), User: eveID},
	}, parsed)
	eve := b.as(t, made.GetValue())
	require.Equal(t, "eve", call(t, eve.directory.WhoAmI, &statev1.WhoAmIRequest{}).GetUser().GetUsername())
	// A token that names eve, but which the service did not make.
	invented, err := routable.New(routable.Personal, parsed.Payload)
	require.NoError(t, err)
	refused(t, errcode.Unauthenticated, b.as(t, invented).directory.WhoAmI, &statev1.WhoAmIRequest{})
}

func TestTokenCannotMakeOneThatOutlivesItOrMayDoMore(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	expires := time.Now().Add(time.Hour)
	short := b.as(t, call(t, admin.tokens.CreateToken,
		&statev1.CreateTokenRequest{Name: "short", ExpiresAt: timestamppb.New(expires)}).GetValue())
	for name, until := range map[string]*timestamppb.Timestamp{
		"never": nil, "later": timestamppb.New(expires.Add(time.Minute)),
	} {
		_, err := short.tokens.CreateToken(t.Context(), connect.NewRequest(
			&statev1.CreateTokenRequest{Name: name, ExpiresAt: until}))
		require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err), name)
		require.ErrorContains(t, err, "must not outlive your own")
	}
	call(t, short.tokens.CreateToken,
		&statev1.CreateTokenRequest{Name: "earlier", ExpiresAt: timestamppb.New(expires.Add(-time.Minute))})

	made := call(t, admin.tokens.CreateToken,
		&statev1.CreateTokenRequest{Name: "reads", Scope: statev1.TokenScope_TOKEN_SCOPE_READ})
	require.Equal(t, statev1.TokenScope_TOKEN_SCOPE_READ, made.GetToken().GetScope())
	reads := b.as(t, made.GetValue())
	require.Equal(t, "admin", call(t, reads.directory.WhoAmI, &statev1.WhoAmIRequest{}).GetUser().GetUsername())
	refused(t, errcode.PermissionDenied, reads.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "more"})
	refused(t, errcode.PermissionDenied, reads.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "w"})
	refused(t, errcode.PermissionDenied, reads.directory.CreateUser, &statev1.CreateUserRequest{Username: "eve"})
	refused(t, errcode.InvalidArgument, admin.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "x", Scope: 9})
	writes := b.as(t, call(t, admin.tokens.CreateToken,
		&statev1.CreateTokenRequest{Name: "writes", Scope: statev1.TokenScope_TOKEN_SCOPE_WRITE}).GetValue())
	refused(t, errcode.PermissionDenied, writes.directory.CreateUser, &statev1.CreateUserRequest{Username: "eve"})
	refused(t, errcode.NotFound, writes.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "w", ProjectId: 99})

	// The access token has the scope of the token that was exchanged.
	v := verifier(t, b.readDirectory(t))
	caller, err := v.Verify(reads.exchange(t, "deploys"))
	require.NoError(t, err)
	require.Equal(t, access.ScopeRead, caller.Scope)
	caller, err = v.Verify(admin.exchange(t, "deploys"))
	require.NoError(t, err)
	require.Equal(t, access.ScopeAdmin, caller.Scope)
}

func TestTokensOfAUserAreLimited(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.cfg.Access.MaxTokensPerUser = 3
	b.start(t)
	admin := b.as(t, b.admin)
	_, ada := admin.user(b, "ada")
	var last *statev1.Token
	for range 2 {
		last = call(t, ada.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "more"}).GetToken()
	}
	_, err := ada.tokens.CreateToken(t.Context(), connect.NewRequest(&statev1.CreateTokenRequest{Name: "too many"}))
	require.Equal(t, errcode.ResourceExhausted, fault.CodeOf(err))
	require.ErrorContains(t, err, "has 3 active tokens, the maximum: revoke one")
	call(t, ada.tokens.RevokeToken, &statev1.RevokeTokenRequest{Id: last.GetId()})
	call(t, ada.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "again"})
}

// A revocation ends the streams of a token at state, and publishes that its access tokens are void.
func TestRevokedTokenLosesStreamsAndAccessTokens(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	made := call(t, admin.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "laptop"})
	laptop := b.as(t, made.GetValue())
	d := b.readDirectory(t)
	v := verifier(t, d)
	token, other := laptop.exchange(t, "deploys"), admin.exchange(t, "deploys")
	until(t, d, func() bool { _, err := v.Verify(token); return err == nil })

	streams := map[string]*connect.ServerStreamForClient[statev1.WatchWorkspacesResponse]{}
	for name, who := range map[string]as{"laptop": laptop, "admin": admin} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := who.workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{}))
		require.NoError(t, err)
		defer stream.Close()
		streams[name] = stream
	}
	call(t, admin.tokens.RevokeToken, &statev1.RevokeTokenRequest{Id: made.GetToken().GetId()})
	require.False(t, streams["laptop"].Receive())
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(streams["laptop"].Err()), "%v", streams["laptop"].Err())
	until(t, d, func() bool { _, err := v.Verify(token); return fault.Is(err, errcode.Unauthenticated) })
	_, err := v.Verify(other)
	require.NoError(t, err, "another token of the user")
	call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "w", ProjectId: project})
	require.True(t, streams["admin"].Receive(), "%v", streams["admin"].Err())

	// Other changes of the user do not bring the token back.
	further := call(t, admin.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "further"})
	void := b.as(t, further.GetValue()).exchange(t, "deploys")
	call(t, admin.tokens.RevokeToken, &statev1.RevokeTokenRequest{Id: further.GetToken().GetId()})
	until(t, d, func() bool { _, err := v.Verify(void); return fault.Is(err, errcode.Unauthenticated) })
	_, err = v.Verify(token)
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
}
