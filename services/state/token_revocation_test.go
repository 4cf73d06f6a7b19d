package state_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// token creates a token of a user; user 0 is the caller.
func (a as) token(b *fixture, name string, user int64) (*statev1.Token, as) {
	a.t.Helper()
	made := call(a.t, a.tokens.CreateToken, &statev1.CreateTokenRequest{Name: name, UserId: user})
	return made.GetToken(), b.as(a.t, made.GetValue())
}

// revoke returns the names of the tokens that the call revoked.
func (a as) revoke(id int64) []string {
	a.t.Helper()
	names := []string{}
	for _, token := range call(a.t, a.tokens.RevokeToken, &statev1.RevokeTokenRequest{Id: id}).GetRevoked() {
		require.True(a.t, token.GetRevoked())
		names = append(names, token.GetName())
	}
	return names
}

// Whoever stole a token and created others with it loses all of them: requests, streams, and access tokens for other
// services.
func TestRevokedTokenTakesTheTokensThatItCreatedWithIt(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	ada := call(t, admin.directory.CreateUser, &statev1.CreateUserRequest{Username: "ada"}).GetUser().GetId()
	d := b.readDirectory(t)
	v := verifier(t, d)

	stolen, thief := admin.token(b, "stolen", 0)
	child, thiefs := thief.token(b, "child", 0)
	require.Equal(t, stolen.GetId(), child.GetCreatedBy())
	grandchild, adas := thiefs.token(b, "of another user", ada)
	_, other := admin.token(b, "other", ada)
	listed := call(t, adas.tokens.ListTokens, &statev1.ListTokensRequest{}).GetTokens()
	require.Len(t, listed, 2)
	require.Equal(t, grandchild.GetId(), listed[0].GetId())
	require.Equal(t, child.GetId(), listed[0].GetCreatedBy())

	lost := map[string]as{"stolen": thief, "child": thiefs, "of another user": adas}
	access := map[string]string{}
	streams := map[string]*connect.ServerStreamForClient[statev1.WatchWorkspacesResponse]{}
	for name, who := range lost {
		access[name] = who.exchange(t, "deploys")
		until(t, d, func() bool { _, err := v.Verify(access[name]); return err == nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := who.workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{}))
		require.NoError(t, err)
		defer stream.Close()
		streams[name] = stream
	}

	require.Equal(t, []string{"stolen", "child", "of another user"}, admin.revoke(stolen.GetId()))
	for name, who := range lost {
		refused(t, errcode.Unauthenticated, who.directory.WhoAmI, &statev1.WhoAmIRequest{})
		require.False(t, streams[name].Receive(), name)
		require.Equal(t, errcode.Unauthenticated, fault.CodeOf(streams[name].Err()), "%s: %v", name, streams[name].Err())
		until(t, d, func() bool { _, err := v.Verify(access[name]); return fault.Is(err, errcode.Unauthenticated) })
	}
	call(t, other.directory.WhoAmI, &statev1.WhoAmIRequest{})
	require.Empty(t, admin.revoke(stolen.GetId()), "revoked before")
}

func TestAdministratorWhoLeavesTakesNobodyElsesTokens(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	create := &statev1.CreateUserRequest{Username: "ada", Admin: true}
	ada := call(t, admin.directory.CreateUser, create).GetUser().GetId()
	eve := call(t, admin.directory.CreateUser, &statev1.CreateUserRequest{Username: "eve"}).GetUser().GetId()
	old, adas := admin.token(b, "of ada", ada)
	_, replaced := adas.token(b, "replacement", 0)
	_, eves := adas.token(b, "of eve", eve)

	rotated := call(t, replaced.tokens.RevokeToken, &statev1.RevokeTokenRequest{Id: old.GetId(), KeepOtherUsers: true})
	require.Len(t, rotated.GetRevoked(), 1)
	_, another := replaced.token(b, "another of eve", eve)
	blocked := call(t, admin.directory.BlockUser, &statev1.BlockUserRequest{Id: ada, KeepOtherUsers: true})
	require.True(t, blocked.GetUser().GetBlocked())
	require.Empty(t, blocked.GetRevoked())
	for _, kept := range []as{eves, another} {
		call(t, kept.directory.WhoAmI, &statev1.WhoAmIRequest{})
	}
	require.Len(t, call(t, admin.directory.BlockUser, &statev1.BlockUserRequest{Id: ada}).GetRevoked(), 2)
	for _, lost := range []as{eves, another} {
		refused(t, errcode.Unauthenticated, lost.directory.WhoAmI, &statev1.WhoAmIRequest{})
	}
}

func TestUnblockedUserNeedsANewToken(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	ada := call(t, admin.directory.CreateUser, &statev1.CreateUserRequest{Username: "ada"}).GetUser().GetId()
	_, old := admin.token(b, "old", ada)
	unblock := &statev1.UnblockUserRequest{Id: ada}
	refused(t, errcode.FailedPrecondition, admin.directory.UnblockUser, unblock)
	call(t, old.directory.WhoAmI, &statev1.WhoAmIRequest{})

	call(t, admin.directory.BlockUser, &statev1.BlockUserRequest{Id: ada})
	refused(t, errcode.PermissionDenied, old.directory.UnblockUser, unblock)
	unblocked := call(t, admin.directory.UnblockUser, unblock)
	require.False(t, unblocked.GetUser().GetBlocked())
	require.Len(t, unblocked.GetRevoked(), 1)
	refused(t, errcode.Unauthenticated, old.directory.WhoAmI, &statev1.WhoAmIRequest{})
	_, again := admin.token(b, "again", ada)
	call(t, again.directory.WhoAmI, &statev1.WhoAmIRequest{})
	refused(t, errcode.PermissionDenied, again.directory.UnblockUser, unblock)
}

func TestReplacementRevokesItsPredecessorAndStays(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	first, firsts := admin.token(b, "first", 0)
	_, sibling := firsts.token(b, "sibling", 0)
	_, second := firsts.token(b, "second", 0)
	_, child := second.token(b, "child", 0)

	require.Equal(t, []string{"first", "sibling"}, second.revoke(first.GetId()))
	for _, lost := range []as{firsts, sibling} {
		refused(t, errcode.Unauthenticated, lost.directory.WhoAmI, &statev1.WhoAmIRequest{})
	}
	for _, kept := range []as{admin, second, child} {
		call(t, kept.directory.WhoAmI, &statev1.WhoAmIRequest{})
	}
	// Others reach what the replacement spared.
	require.Equal(t, []string{"second", "child"}, admin.revoke(first.GetId()))
}
