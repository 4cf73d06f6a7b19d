package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/rollout"
)

// Batch stores one batch of ingest within its transaction. It implements [ingest.Store].
type Batch struct {
	StoredFacts

	store *Store
	tx    pgx.Tx
}

// NewBatch returns the store of a batch.
func (s *Store) NewBatch(tx pgx.Tx) *Batch {
	return &Batch{StoredFacts: StoredFacts{DB: tx}, store: s, tx: tx}
}

// Begin implements [ingest.Store].
func (b *Batch) Begin(ctx context.Context, q ingest.Query) (int64, ingest.Loaded, error) {
	return begin(ctx, b.tx, q)
}

// Load implements [ingest.Store].
func (b *Batch) Load(ctx context.Context, q ingest.Query) (ingest.Loaded, error) {
	return load(ctx, b.tx, &pgx.Batch{}, q)
}

// ClusterWorkloads implements [ingest.Store].
func (b *Batch) ClusterWorkloads(ctx context.Context, clusterUID string) ([]*ingest.Record[rollout.State], error) {
	return clusterWorkloads(ctx, b.tx, clusterUID)
}

// BeginResync implements [ingest.Store].
func (b *Batch) BeginResync(ctx context.Context, agentID int64, resyncID string, begunAt time.Time) (bool, error) {
	return beginResync(ctx, b.tx, agentID, resyncID, begunAt)
}

// EndResync implements [ingest.Store].
func (b *Batch) EndResync(
	ctx context.Context, a *agents.Agent, agentIDs []int64, touched []uuid.UUID, members []ingest.Member,
) (ingest.ResyncResult, error) {
	return endResync(ctx, b.tx, a, agentIDs, touched, members)
}

// KnownFacts implements [ingest.Store].
func (b *Batch) KnownFacts(
	ctx context.Context, ids []string, workloads []uuid.UUID,
) (map[string]bool, map[uuid.UUID]int64, error) {
	return knownFacts(ctx, b.tx, ids, workloads)
}

// Save implements [ingest.Store].
func (b *Batch) Save(ctx context.Context, c *ingest.Changes) error {
	w := Rows{
		Agents: c.Agents, Workloads: c.Workloads, Environments: c.Environments, Members: c.Members, Rollouts: c.Rollouts,
	}
	for _, f := range c.Facts {
		data, err := f.Encode()
		if err != nil {
			return err
		}
		row := Fact{
			ID: f.ID(), Workload: f.WorkloadID, Sequence: int64(f.Sequence), Fact: string(f.Fact), OccurredAt: f.OccurredAt,
			ObservedAt: f.ObservedAt, Data: string(data), StreamSequence: f.Position,
		}
		if f.Rollout != nil {
			row.RolloutID = f.Rollout.ID
		}
		w.Facts = append(w.Facts, row)
	}
	if err := b.store.Save(ctx, b.tx, w); err != nil {
		return err
	}
	if len(c.Reporters)+len(c.Claims) > 0 {
		if err := b.store.Claim(ctx, b.tx, c.Reporters, c.Claims); err != nil {
			return err
		}
	}
	return b.SetPositions(ctx, c.Positions)
}
