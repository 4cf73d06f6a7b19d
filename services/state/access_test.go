package state_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/testkit/natstest"
)

// readDirectory reads the directory, as another service does, until the test ends.
func (b *fixture) readDirectory(t *testing.T) *directory.Directory {
	t.Helper()
	d, err := directory.New(directory.Config{
		JetStream: natstest.Open(t, b.administrator(t)), Cell: topology.Cell(b.cfg.Cell.Name),
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		d.Run(ctx, func() { close(ready) })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	select {
	case <-ready:
	case <-time.After(time.Minute):
		require.Fail(t, "the directory is not read", "%v", d.Check(t.Context()))
	}
	return d
}

func until(t *testing.T, d *directory.Directory, holds func() bool) {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		changed := d.Changed()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.Fail(t, "the condition is not met in the directory")
		}
	}
}

func verifier(t *testing.T, d *directory.Directory) *access.Verifier {
	t.Helper()
	v, err := access.NewVerifier(access.Config{Directory: d, Cell: "local", Audience: "deploys"})
	require.NoError(t, err)
	return v
}

func (a as) exchange(t *testing.T, audience ...string) string {
	t.Helper()
	answer := call(t, a.tokens.ExchangeToken, &statev1.ExchangeTokenRequest{Audience: audience})
	left := time.Until(answer.GetExpiresAt().AsTime())
	require.LessOrEqual(t, left, 5*time.Minute)
	require.Positive(t, left)
	return answer.GetAccessToken()
}

func TestPersonalAccessTokenIsExchangedForAnAccessToken(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	stop := b.start(t)
	admin := b.as(t, b.admin)
	project, agent := admin.project()
	anna, annas := admin.user(b, "anna")
	eve, _ := admin.user(b, "eve")
	d := b.readDirectory(t)
	v := verifier(t, d)

	token := admin.exchange(t, "deploys", "relay")
	until(t, d, func() bool { _, err := v.Verify(token); return err == nil })
	caller, err := v.Verify(token)
	require.NoError(t, err)
	require.True(t, caller.Admin)
	_, err = v.Verify(admin.exchange(t, "relay"))
	require.ErrorContains(t, err, "not for the service deploys")

	call(t, admin.directory.PutMembership, &statev1.PutMembershipRequest{Membership: &statev1.Membership{
		UserId: anna, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project, Role: statev1.Role_ROLE_READER,
	}})
	until(t, d, func() bool { return d.AgentRole(anna, agent.GetAgent().GetId()) == directory.RoleReader })
	token = annas.exchange(t, "deploys")
	caller, err = v.Verify(token)
	require.NoError(t, err)
	require.Equal(t, anna, caller.UserID)
	require.False(t, caller.Admin)
	ctx := access.WithCaller(t.Context(), caller)
	require.NoError(t, access.RequireAgentRole(ctx, d, agent.GetAgent().GetId(), directory.RoleReader, "a rollout"))
	until(t, d, func() bool { _, known := d.User(eve); return known })
	require.Equal(t, directory.RoleNone, d.AgentRole(eve, agent.GetAgent().GetId()))

	// It is no personal access token, and cannot be exchanged for another one.
	refused(
		t,
		errcode.Unauthenticated,
		b.as(t, token).tokens.ExchangeToken,
		&statev1.ExchangeTokenRequest{Audience: []string{"deploys"}},
	)
	for _, audience := range [][]string{nil, {""}, {"De Ploys"}, make([]string, 17)} {
		refused(t, errcode.InvalidArgument, admin.tokens.ExchangeToken, &statev1.ExchangeTokenRequest{Audience: audience})
	}

	// The keys survive a restart, so the earlier token stays valid.
	stop()
	b.start(t)
	_, err = v.Verify(token)
	require.NoError(t, err)
	call(t, b.as(t, b.admin).directory.BlockUser, &statev1.BlockUserRequest{Id: anna})
	until(t, d, func() bool { _, err := v.Verify(token); return err != nil })
	_, err = v.Verify(token)
	require.ErrorContains(t, err, "blocked")
}

func TestAccessTokenExpiresWithItsPersonalAccessToken(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	ends := time.Now().Add(2 * time.Minute)
	made := call(
		t,
		b.as(t, b.admin).tokens.CreateToken,
		&statev1.CreateTokenRequest{Name: "short", ExpiresAt: timestamppb.New(ends)},
	)
	answer := call(
		t,
		b.as(t, made.GetValue()).tokens.ExchangeToken,
		&statev1.ExchangeTokenRequest{Audience: []string{"deploys"}},
	)
	require.False(t, answer.GetExpiresAt().AsTime().After(ends))
	call(t, b.as(t, b.admin).tokens.RevokeToken, &statev1.RevokeTokenRequest{Id: made.GetToken().GetId()})
	refused(
		t,
		errcode.Unauthenticated,
		b.as(t, made.GetValue()).tokens.ExchangeToken,
		&statev1.ExchangeTokenRequest{Audience: []string{"deploys"}},
	)
}

func TestReplicasShareSealedSigningKeys(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	first := b.as(t, b.admin).exchange(t, "deploys")
	b.start(t) // another replica
	second := b.as(t, b.admin).exchange(t, "deploys")
	d := b.readDirectory(t)
	v := verifier(t, d)
	for _, token := range []string{first, second} {
		until(t, d, func() bool { _, err := v.Verify(token); return err == nil })
	}
	conn, err := pgx.Connect(t.Context(), b.cfg.Database.URL.Reveal())
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	var keys int
	var id string
	require.NoError(
		t,
		conn.QueryRow(t.Context(), `select count(*), min(id) from state.token_signing_keys`).Scan(&keys, &id),
	)
	require.Equal(t, 1, keys)
	subject := topology.Cell("local").Directory("key", id)
	require.Contains(t, b.last(t, topology.StreamDirectory, subject), `"algorithm":"EdDSA"`)

	// A key that is a day old has a successor, and both are valid.
	_, err = conn.Exec(
		t.Context(),
		`update state.token_signing_keys
			set made_at = made_at - interval '25 hours', not_after = not_after - interval '25 hours'`,
	)
	require.NoError(t, err)
	b.start(t)
	require.NoError(t, conn.QueryRow(t.Context(), `select count(*) from state.token_signing_keys`).Scan(&keys))
	require.Equal(t, 2, keys)
	// An expired key is deleted, and the deletion is published.
	_, err = conn.Exec(t.Context(), `update state.token_signing_keys set not_after = now() where id = $1`, id)
	require.NoError(t, err)
	b.start(t)
	require.NoError(
		t,
		conn.QueryRow(t.Context(), `select count(*) from state.token_signing_keys where id = $1`, id).Scan(&keys),
	)
	require.Zero(t, keys)
	require.Eventually(t, func() bool { return !b.holdsKey(t, subject) }, time.Minute, 10*time.Millisecond)
}

func (b *fixture) holdsKey(t *testing.T, subject string) bool {
	t.Helper()
	last := b.last(t, topology.StreamDirectory, subject)
	return last != "" && !strings.Contains(last, `"deleted":true`)
}
