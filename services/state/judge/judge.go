package judge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/logkey"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/postgres"
)

// pollInterval is the time between two reads of the resyncs to judge if no notification arrives.
const pollInterval = time.Minute

// Judge judges full resyncs. Its fields are required. It is safe for concurrent use.
type Judge struct {
	Pool         *pgxpool.Pool
	Logger       *slog.Logger
	Ingest       *ingest.Ingest
	IngestStores *postgres.IngestStores
}

// Run judges resyncs as they end, until ctx ends. It waits while another replica judges. It returns an error if the
// database fails or a resync cannot be judged; then it may be called again.
func (j *Judge) Run(ctx context.Context) error {
	return libpostgres.ExclusiveWork{
		Lock: "judge", Interval: pollInterval, Channel: postgres.EndedResyncsChannel,
		Do: func(ctx context.Context, conn *pgx.Conn) error { return j.All(ctx, conn) },
	}.Run(ctx, j.Pool)
}

// Connection is a connection of its own or one of a pool.
type Connection interface {
	libpostgres.Beginner

	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// All judges all resyncs that have ended. An error of one does not prevent the others.
func (j *Judge) All(ctx context.Context, db Connection) error {
	var ended []ingest.EndedResync
	err := libpostgres.InTx(ctx, db, func(tx pgx.Tx) error {
		var err error
		ended, err = j.IngestStores.In(tx).EndedResyncs(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("judge: %w", err)
	}
	var errs []error
	for _, r := range ended {
		if err := j.judge(ctx, db, r); err != nil {
			errs = append(errs, fmt.Errorf("judge resync %s of agent %d: %w", r.ID, r.AgentID, err))
		}
	}
	return errors.Join(errs...)
}

// snapshot reads one state of the database.
type snapshot struct{ Connection }

// Begin begins a transaction that only reads.
func (s snapshot) Begin(ctx context.Context) (pgx.Tx, error) {
	return s.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
}

func (j *Judge) judge(ctx context.Context, db Connection, r ingest.EndedResync) error {
	began := time.Now()
	var judgement *ingest.Judgement
	err := libpostgres.InTx(ctx, snapshot{db}, func(tx pgx.Tx) error {
		var err error
		judgement, err = j.IngestStores.In(tx).Judge(ctx, r)
		return err
	})
	if err != nil {
		return err
	}
	for _, step := range judgement.Steps() {
		stored := false
		err := libpostgres.InTx(ctx, db, func(tx pgx.Tx) error {
			var err error
			stored, err = j.Ingest.StoreJudgement(ctx, j.IngestStores.In(tx), step)
			return err
		})
		if err != nil || !stored {
			return err
		}
	}
	j.Logger.DebugContext(ctx, "judged a full resync", slog.Int64(logkey.AgentID, r.AgentID),
		slog.String(logkey.ResyncID, r.ID), slog.Int64(logkey.Count, judgement.Received),
		slog.Duration(logkey.Duration, time.Since(began)))
	return nil
}
