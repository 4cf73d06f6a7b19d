package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/workspace"
)

// everyColumn lists, for each column of the shadow tables, whether it is derived from streams. Add every new
// column here, and to rebuiltTables if it is derived.
func everyColumn() map[string]map[string]bool {
	const derived, stored = true, false
	return map[string]map[string]bool{
		"agents": {
			"id":                     stored,
			"project_id":             stored,
			"name":                   stored,
			"token_hash":             stored,
			"previous_token_hash":    stored,
			"curve_public_key":       stored,
			"created_at":             stored,
			"revoked_at":             stored,
			"configuration":          stored,
			"configuration_revision": stored,
			"considered_revision":    stored,
			"entry_form":             stored,
			"last_seen_at":           derived,
			"ticked_at":              derived,
			"clock_offset_ms":        derived,
			"objects":                stored,
			"cluster_uid":            derived,
			"epoch":                  derived,

			"previous_token_valid_until": stored,
		},
		"observed_objects": {
			"agent_id":         stored,
			"kind":             stored,
			"namespace":        stored,
			"name":             stored,
			"uid":              derived,
			"cluster_uid":      derived,
			"epoch":            derived,
			"resource_version": derived,
			"deleted":          derived,
			"workspace_id":     derived,
			"resync_id":        stored,
			"data":             derived,
		},
		"resyncs": {
			"agent_id":      stored,
			"resync_id":     stored,
			"cluster_uid":   derived,
			"epoch":         derived,
			"nonce":         derived,
			"cause":         derived,
			"list_versions": derived,
			"expected":      derived,
			"received":      derived,
			"recorded":      stored,
			"outcome":       derived,
			"begun_at":      derived,
			"ended_at":      derived,
		},
		"orphans": {
			"agent_id":         stored,
			"uid":              stored,
			"seen_at":          stored,
			"desired_revision": stored,
			"user_id":          stored,
			"message":          stored,
			"ended_at":         stored,
			"workspace":        derived,
			"namespace":        derived,
			"name":             derived,
		},
		"workspaces": {
			"id":                       stored,
			"name":                     stored,
			"project_id":               stored,
			"agent_id":                 stored,
			"user_id":                  stored,
			"template":                 stored,
			"namespace":                stored,
			"spec":                     stored,
			"desired_state":            stored,
			"desired_revision":         stored,
			"rendered_revision":        stored,
			"idempotency_key":          stored,
			"created_at":               stored,
			"desired_state_changed_at": stored,
			"desired_state_since":      stored,
			"expiry_warned_of":         stored,
			"age_warned_of":            stored,
			"shares":                   stored,
			"last_activity_at":         stored,
			"last_activity_user_id":    stored,
			"last_activity_program":    stored,
			"counts_processes":         stored,
			"extended_until":           stored,
			"idle_warned_of":           stored,
			"actual_state_revision":    stored,
			"actual_state_changed_at":  stored,
			"actual_state":             derived,
			"reason":                   derived,
			"message":                  derived,
			"reconsider_at":            derived,
			"applied_revision":         derived,
			"applied_at":               derived,
			"applied_uid":              derived,
			"applied_generation":       derived,
			"apply_error_revision":     derived,
			"apply_error_reason":       derived,
			"apply_error_message":      derived,
			"termination":              derived,
			"remaining_reason":         derived,
			"remaining_message":        derived,
		},
	}
}

func TestEveryColumnIsEitherDerivedOrDesired(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	declared := postgres.DerivedColumns()
	for table, columns := range everyColumn() {
		rows, err := b.pool.Query(
			t.Context(),
			`select column_name from information_schema.columns where table_schema = current_schema() and table_name = $1`,
			table,
		)
		require.NoError(t, err)
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Len(t, names, len(columns), table)
		for _, name := range names {
			derived, known := columns[name]
			require.True(t, known, "%s.%s is missing in everyColumn", table, name)
			if derived {
				require.Contains(t, declared[table], name, table)
			} else {
				require.NotContains(t, declared[table], name, table)
			}
		}
		delete(declared, table)
	}
	require.Empty(t, declared)
}

func TestShadowProtectsTheLiveTables(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	held, err := libpostgres.Lock{Name: "shadow"}.Try(t.Context(), b.pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release(t.Context())) })
	shadow, err := postgres.NewShadow(t.Context(), held.Conn())
	require.NoError(t, err)
	do := func(db libpostgres.Beginner, statement string) error {
		return libpostgres.InTx(t.Context(), db, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), statement)
			return err
		})
	}
	require.NoError(t, libpostgres.InTx(t.Context(), held.Conn(), func(tx pgx.Tx) error {
		if err := shadow.Sync(t.Context(), tx); err != nil {
			return err
		}
		within := shadow.Savepoints(tx)
		require.ErrorContains(t, do(within, `update projects set name = 'mine'`), "read-only transaction")
		require.NoError(t, do(within, `update agents set epoch = 7`))
		_, err := tx.Exec(t.Context(), `update projects set name = 'renamed' where id = 4`)
		return err // outside of savepoints the live tables are writable
	}))
	require.ErrorContains(t, do(shadow, `delete from projects`), "read-only transaction")
	publish := `insert into outbox (subject, header, data) values ('a', '{}', '')`
	require.ErrorContains(t, do(shadow, publish), "read-only transaction", "a rebuild publishes nothing")
	require.NoError(t, shadow.Vacuum(t.Context()))

	count := func(db interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}, from string,
	) (n int) {
		require.NoError(t, db.QueryRow(t.Context(), `select count(*) from `+from).Scan(&n))
		return n
	}
	require.Equal(t, 2, count(held.Conn(), `agents where epoch = 7`))
	require.Zero(t, count(b.pool, `agents where epoch = 7`))
	require.Equal(t, 1, count(b.pool, `projects where name = 'renamed'`))
}

// A workspace's name is free again when it is terminated.
func TestShadowFollowsDesiredStates(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	first := b.inserted(workspace.Creation{Name: "w"})
	held, err := libpostgres.Lock{Name: "shadow"}.Try(t.Context(), b.pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release(t.Context())) })
	shadow, err := postgres.NewShadow(t.Context(), held.Conn())
	require.NoError(t, err)
	sync := func() {
		require.NoError(
			t,
			libpostgres.InTx(t.Context(), held.Conn(), func(tx pgx.Tx) error { return shadow.Sync(t.Context(), tx) }),
		)
	}
	sync()
	_, err = b.pool.Exec(
		t.Context(),
		`update workspaces set actual_state = 'terminated', desired_state = 'terminated', termination = 'finished',
			applied_revision = 3`,
	)
	require.NoError(t, err)
	second := b.inserted(workspace.Creation{Name: "w"})
	_, err = b.pool.Exec(
		t.Context(),
		`update workspaces set actual_state = 'running', applied_revision = 1, desired_state = 'stopped' where id = $1`,
		second.ID,
	)
	require.NoError(t, err)
	_, err = b.pool.Exec(
		t.Context(),
		`insert into agents (id, project_id, name, token_hash, curve_public_key, epoch) values (77, 4, 'c', 'c', 'X', 5)`,
	)
	require.NoError(t, err)
	sync()
	rows, err := held.Conn().
		Query(t.Context(), `select (id, actual_state, desired_state, termination, applied_revision)::text from workspaces
			order by id`)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{
		"(" + first.ID.String() + ",terminated,terminated,finished,3)",
		"(" + second.ID.String() + ",creation_requested,stopped,none,0)",
	}, found)
	var epoch int
	require.NoError(t, held.Conn().QueryRow(t.Context(), `select epoch from agents where id = 77`).Scan(&epoch))
	require.Equal(t, 1, epoch)
}
