package postgres_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/rollout"
	"lockstep.internal/tools/testkit/pgtest"
)

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC) }

func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	cfg := libpostgres.Config{URL: url, Schema: "deploys"}
	pool, err := libpostgres.Connect(t.Context(), cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func migrate(t *testing.T, pool *pgxpool.Pool) error {
	t.Helper()
	series, err := postgres.Migrations()
	require.NoError(t, err)
	return libpostgres.Migrate(t.Context(), pool, slog.New(slog.DiscardHandler), series...)
}

func setup(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := connect(t, pgtest.Database(t))
	require.NoError(t, migrate(t, pool))
	return pool
}

// inTx runs do in a transaction.
func inTx(t *testing.T, pool *pgxpool.Pool, do func(tx pgx.Tx) error) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, do))
}

func save(t *testing.T, pool *pgxpool.Pool, w postgres.Rows) {
	t.Helper()
	inTx(t, pool, func(tx pgx.Tx) error { return (&postgres.Store{}).Save(t.Context(), tx, w) })
}

// present returns the state of a workload that exists.
func present(cluster string) rollout.State {
	return rollout.State{Key: rollout.Key{ClusterUID: cluster}, View: &rollout.View{}}
}

func workload(name string) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte(name)) }

// fact returns a fact of a workload. data distinguishes facts with the same id.
func fact(id, name string, sequence int64, data string) postgres.Fact {
	return postgres.Fact{
		ID: id, Workload: workload(name), Sequence: sequence, Fact: "started", OccurredAt: start(), ObservedAt: start(),
		Data: data, StreamSequence: sequence,
	}
}

// newRollout returns the n-th rollout of a workload. It completed after ms milliseconds.
func newRollout(name string, n int64, ms int64, change ...func(*history.Rollout)) history.Rollout {
	r := history.Rollout{
		ID: fmt.Sprintf("cluster/%s/%d/h", name, n), Workload: workload(name).String(), ClusterUID: "cluster", AgentID: 7,
		Namespace: "shop", Kind: "deployment", Name: name,
		UID: "uid-" + name, Revision: n, TemplateHash: "h", Change: string(events.ChangeUpdated), Strategy: "RollingUpdate",
		Images: []events.Image{}, PreviousImages: []events.Image{},
		Labels: map[string]string{}, StartedAt: start().Add(time.Duration(n) * time.Minute), StartedObservedAt: start(),
		LastSequence: 10*n + 1, UpdatedAt: start(),
		FirstSequence: new(10 * n), State: new(history.Completed), DurationMs: new(ms),
	}
	for _, c := range change {
		c(&r)
	}
	return r
}
