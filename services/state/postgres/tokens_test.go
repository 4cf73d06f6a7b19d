package postgres_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/postgres"
)

const tokenLimit = 50

// createToken creates a token. Its name is its value, too.
func (b *fixture) createToken(t directory.Token) directory.Token {
	b.t.Helper()
	t.Scope = access.ScopeAdmin
	made, err := b.directory().CreateToken(b.t.Context(), t, []byte(t.Name), tokenLimit)
	require.NoError(b.t, err)
	return made
}

// tokenTree creates tokens of users 9 and 10: root → a → b → c, a → d, root → e, and another one beside root.
func (b *fixture) tokenTree() map[string]int64 {
	b.t.Helper()
	ids := map[string]int64{}
	for _, t := range []struct {
		name, creator string
		user          int64
	}{
		{"root", "", 9}, {"beside", "", 9}, {"a", "root", 9}, {"b", "a", 10}, {"c", "b", 9}, {"d", "a", 9}, {"e", "root", 10},
	} {
		ids[t.name] = b.createToken(directory.Token{Name: t.name, UserID: t.user, CreatedBy: ids[t.creator]}).ID
	}
	return ids
}

// nine is a token of user 9.
func nine(id int64) directory.Token { return directory.Token{ID: id, UserID: 9} }

func names(tokens []directory.Token) []string {
	out := []string{}
	for _, t := range tokens {
		out = append(out, t.Name)
	}
	return out
}

func TestRevocationReachesEachDescendantAndSparesTheCallers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		revoked, caller string
		keepOthers      bool
		want            []string
	}{
		"a root by another token": {"root", "beside", false, []string{"root", "a", "b", "c", "d", "e"}},
		"a part":                  {"a", "beside", false, []string{"a", "b", "c", "d"}},
		"a leaf":                  {"c", "beside", false, []string{"c"}},
		"by its creator":          {"b", "a", false, []string{"b", "c"}},
		"by a child":              {"root", "a", false, []string{"root", "e"}},
		"by a grandchild":         {"root", "b", false, []string{"root", "a", "d", "e"}},
		"by itself":               {"a", "a", false, []string{"a", "b", "c", "d"}},
		"but not of other users":  {"root", "beside", true, []string{"root", "a", "d"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			ids := b.tokenTree()
			b.outbox()
			spare := postgres.Spare{Caller: ids[c.caller], OtherUsers: c.keepOthers}
			revoked, err := b.directory().RevokeToken(t.Context(), nine(ids[c.revoked]), spare)
			require.NoError(t, err)
			require.Equal(t, c.want, names(revoked))
			entries := map[string][]any{}
			for _, m := range b.outbox() {
				entries[m.Subject], _ = m.Data["revoked_tokens"].([]any)
			}
			for _, u := range []struct {
				id      int64
				subject string
			}{{9, "lockstep.local.directory.user.9"}, {10, "lockstep.local.directory.user.10"}} {
				var want []any
				for _, token := range revoked {
					if token.UserID == u.id {
						want = append(want, float64(token.ID))
					}
				}
				require.ElementsMatch(t, want, entries[u.subject], u.subject)
			}
			again, err := b.directory().RevokeToken(t.Context(), nine(ids[c.revoked]), spare)
			require.NoError(t, err)
			require.Empty(t, again)
			require.Empty(t, b.outbox())
		})
	}
}

func TestTokensThatAUserCreatedEndWhenTheUserIsBlocked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		caller     string
		keepOthers bool
		want       []string
	}{
		"of every user":          {"", false, []string{"b", "e"}},
		"but not of other users": {"", true, []string{}},
		"but not the caller's":   {"b", false, []string{"e"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			ids := b.tokenTree()
			b.outbox()
			spare := postgres.Spare{Caller: ids[c.caller], OtherUsers: c.keepOthers}
			user, revoked, err := b.directory().BlockUser(t.Context(), 9, spare)
			require.NoError(t, err)
			require.True(t, user.Blocked)
			require.Equal(t, c.want, names(revoked))
			for _, m := range b.outbox() {
				require.Equal(t, m.Subject == "lockstep.local.directory.user.9", m.Data["state"] == "blocked", m.Subject)
			}
			_, err = b.directory().CreateToken(t.Context(), directory.Token{
				Name: "new", UserID: 10, CreatedBy: ids["a"], Scope: access.ScopeAdmin,
			}, []byte("new"), tokenLimit)
			require.True(t, fault.Is(err, errcode.Unauthenticated), "%v", err)
		})
	}
	_, _, err := newFixture(t).directory().BlockUser(t.Context(), 999, postgres.Spare{})
	require.True(t, fault.Is(err, errcode.NotFound), "%v", err)
}

// A descendant that an earlier revocation spared is below tokens that are revoked already.
func TestRevocationPassesTokensThatWereRevokedBefore(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ids := b.tokenTree()
	_, err := b.directory().RevokeToken(t.Context(), nine(ids["a"]), postgres.Spare{Caller: ids["b"]})
	require.NoError(t, err)
	revoked, err := b.directory().RevokeToken(t.Context(), nine(ids["root"]), postgres.Spare{Caller: ids["beside"]})
	require.NoError(t, err)
	require.Equal(t, []string{"root", "b", "c", "e"}, names(revoked))
}

// Expired tokens would displace others in the entry of their user, which is bounded.
func TestExpiredTokensAreNotRevoked(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	root := b.createToken(directory.Token{Name: "root", UserID: 9})
	b.createToken(directory.Token{Name: "valid", UserID: 9, CreatedBy: root.ID, ExpiresAt: time.Now().Add(time.Hour)})
	b.createToken(directory.Token{Name: "expired", UserID: 9, CreatedBy: root.ID, ExpiresAt: time.Now().Add(-time.Hour)})
	revoked, err := b.directory().RevokeToken(t.Context(), root, postgres.Spare{})
	require.NoError(t, err)
	require.Equal(t, []string{"root", "valid"}, names(revoked))
}

// concurrently runs first in a transaction, and second in another one. It commits the first one once the second one
// waits for it, and returns the error of the second one.
func (b *fixture) concurrently(first, second func(ctx context.Context, tx pgx.Tx) error) error {
	b.t.Helper()
	ctx := b.t.Context()
	tx, err := b.pool.Begin(ctx)
	require.NoError(b.t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	require.NoError(b.t, first(ctx, tx))
	done := make(chan error, 1)
	go func() { done <- b.tx(func(tx pgx.Tx) error { return second(ctx, tx) }) }()
	require.Eventually(b.t, func() bool {
		var waiting int
		err := b.pool.QueryRow(ctx, `select count(*) from pg_stat_activity
			where datname = current_database() and $1 = any(pg_blocking_pids(pid))`, tx.Conn().PgConn().PID()).Scan(&waiting)
		return err == nil && waiting == 1
	}, time.Minute, 5*time.Millisecond, "the second transaction does not wait")
	require.NoError(b.t, tx.Commit(ctx))
	return <-done
}

func TestRevocationAndConcurrentCreationMissNoToken(t *testing.T) {
	t.Parallel()
	for _, creator := range []string{"root", "c"} {
		t.Run(creator, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			ids := b.tokenTree()
			create := func(ctx context.Context, tx pgx.Tx) error {
				// As the authentication of the caller does.
				_, _, err := b.directory().Within(tx).UserByToken(ctx, []byte(creator))
				require.NoError(t, err)
				_, err = b.directory().Within(tx).CreateToken(ctx, directory.Token{
					Name: "new", UserID: 10, CreatedBy: ids[creator], Scope: access.ScopeAdmin,
				}, []byte("new"), tokenLimit)
				return err
			}
			var revoked []directory.Token
			require.NoError(t, b.concurrently(create, func(ctx context.Context, tx pgx.Tx) (err error) {
				revoked, err = b.directory().Within(tx).RevokeToken(ctx, nine(ids["root"]), postgres.Spare{Caller: ids["beside"]})
				return err
			}))
			require.Equal(t, []string{"root", "a", "b", "c", "d", "e", "new"}, names(revoked))
			tokens, err := b.directory().Tokens(t.Context(), 10)
			require.NoError(t, err)
			require.False(t, slices.ContainsFunc(tokens, func(t directory.Token) bool { return !t.Revoked }), "%v", tokens)
		})
		t.Run(creator+" is revoked first", func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			ids := b.tokenTree()
			err := b.concurrently(func(ctx context.Context, tx pgx.Tx) error {
				_, err := b.directory().Within(tx).RevokeToken(ctx, nine(ids["root"]), postgres.Spare{Caller: ids["beside"]})
				return err
			}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := b.directory().Within(tx).CreateToken(ctx, directory.Token{
					Name: "new", UserID: 10, CreatedBy: ids[creator], Scope: access.ScopeAdmin,
				}, []byte("new"), tokenLimit)
				return err
			})
			require.True(t, fault.Is(err, errcode.Unauthenticated), "%v", err)
		})
	}
}

// Both lock tokens before users, so neither waits for the other in a circle.
func TestRevocationsOfNestedTokensWaitForEachOther(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ids := b.tokenTree()
	var inner, outer []directory.Token
	require.NoError(t, b.concurrently(func(ctx context.Context, tx pgx.Tx) (err error) {
		inner, err = b.directory().Within(tx).RevokeToken(ctx, nine(ids["b"]), postgres.Spare{Caller: ids["beside"]})
		return err
	}, func(ctx context.Context, tx pgx.Tx) (err error) {
		outer, err = b.directory().Within(tx).RevokeToken(ctx, nine(ids["root"]), postgres.Spare{Caller: ids["beside"]})
		return err
	}))
	require.Equal(t, []string{"b", "c"}, names(inner))
	require.Equal(t, []string{"root", "a", "d", "e"}, names(outer))
}
