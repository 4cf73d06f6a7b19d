package rebuild

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/readmodel"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/judge"
	"lockstep.internal/services/state/nats"
	"lockstep.internal/services/state/postgres"
)

// New returns a rebuild with the settings and the code of the live consumers. Progress is called after each batch; its
// error cancels the rebuild.
func New(live *nats.Consumers, progress func(readmodel.Progress) error) *readmodel.Rebuild {
	open := func(ctx context.Context, conn *pgx.Conn) (readmodel.Shadow, []*readmodel.Stream, error) {
		s, err := newShadow(ctx, live, conn)
		if err != nil {
			return nil, nil, err
		}
		return s, []*readmodel.Stream{s.applied, s.observed}, nil
	}
	return &readmodel.Rebuild{Pool: live.Pool, Open: open, Progress: progress}
}

type shadow struct {
	*postgres.Shadow

	ingest            *ingest.Ingest
	stores            *postgres.IngestStores
	judge             judge.Judge // of the live tables
	applied, observed *readmodel.Stream
}

func newShadow(ctx context.Context, live *nats.Consumers, conn *pgx.Conn) (*shadow, error) {
	// A replay must not publish events, write logs or count metrics.
	consumers := *live
	consumers.IngestStores = &postgres.IngestStores{
		Workspaces: &postgres.Workspaces{NoNotify: true}, MaxMembers: live.IngestStores.MaxMembers,
	}
	consumers.Logger = slog.New(slog.DiscardHandler)
	consumers.Ingest = &ingest.Ingest{
		Logger: consumers.Logger, ReadModelOnly: true, MaxObjects: live.Ingest.MaxObjects,
	}
	consumers.CursorMetrics = nil
	applied, err := consumers.Applied()
	if err != nil {
		return nil, err
	}
	observed, err := consumers.Observed()
	if err != nil {
		return nil, err
	}
	tables, err := postgres.NewShadow(ctx, conn)
	if err != nil {
		return nil, err
	}
	return &shadow{
		Shadow: tables, ingest: consumers.Ingest, stores: consumers.IngestStores,
		judge: judge.Judge{
			Pool: live.Pool, Logger: live.Logger, Ingest: live.Ingest, IngestStores: live.IngestStores,
		},
		applied:  &readmodel.Stream{Name: topology.StreamApplied, Consumer: applied},
		observed: &readmodel.Stream{Name: topology.StreamObserved, Consumer: observed},
	}, nil
}

// Prepare copies the desired state, which is then at least as new as the positions.
func (s *shadow) Prepare(ctx context.Context, tx pgx.Tx, paused bool) error {
	if paused {
		// The shadow tables have no resyncs to judge. Until the positions are released, no other one ends.
		if err := s.judge.All(ctx, s.judge.Pool); err != nil {
			return err
		}
	}
	return s.Sync(ctx, tx)
}

func (s *shadow) Complete(ctx context.Context, tx pgx.Tx) error {
	// From here on, user transactions are blocked.
	if err := s.LockLive(ctx, tx); err != nil {
		return err
	}
	if err := s.Sync(ctx, tx); err != nil {
		return err
	}
	return libpostgres.InTx(ctx, s.Savepoints(tx), func(tx pgx.Tx) error {
		if err := s.CopyMissing(ctx, tx, missing(s.observed), missing(s.applied)); err != nil {
			return err
		}
		ids, err := s.Unfinished(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.ingest.Recompute(ctx, s.stores.In(tx), ids); err != nil {
			return err
		}
		return s.CopyDue(ctx, tx)
	})
}

// missing describes what the stream no longer has.
func missing(s *readmodel.Stream) postgres.Missing {
	m := postgres.Missing{Restored: s.Restored()}
	switch {
	case s.First > 1:
		m.Before = s.FirstStored
	case s.Lost():
		m.Before = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) // the stream is empty
	}
	return m
}
