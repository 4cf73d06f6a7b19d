// Package rebuild recreates all tables that are derived from the stream OBSERVED.
//
// A rebuild reads the stream again into shadow tables, with the code of the live reader, while the live reader
// continues. It then pauses the live reader, reads the remaining messages, compares the tables and replaces them. It
// publishes nothing. If it fails, nothing changes. It keeps state from messages that the stream no longer has.
package rebuild

import (
	"context"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/readmodel"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/nats"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/postgres"
)

// New returns a rebuild with the settings of the live reader. Progress is called after each batch; its error cancels
// the rebuild.
func New(reader *nats.Reader, progress func(readmodel.Progress) error) *readmodel.Rebuild {
	open := func(ctx context.Context, conn *pgx.Conn) (readmodel.Shadow, []*readmodel.Stream, error) {
		consumer, processor, err := reader.RebuildConsumer()
		if err != nil {
			return nil, nil, err
		}
		tables, err := postgres.NewShadow(ctx, conn)
		if err != nil {
			return nil, nil, err
		}
		observed := &readmodel.Stream{Name: topology.StreamObserved, Consumer: consumer}
		return &shadow{tables, processor, observed}, []*readmodel.Stream{observed}, nil
	}
	return &readmodel.Rebuild{Pool: reader.Pool, Open: open, Progress: progress}
}

type shadow struct {
	*postgres.Shadow

	processor *ingest.Processor
	observed  *readmodel.Stream
}

func (s *shadow) Prepare(context.Context, pgx.Tx, bool) error {
	mode := ownership.Replay
	if s.observed.Restored() {
		mode = ownership.ReplayRestored
	}
	s.processor.SetMode(mode) // it also loads the claims that were stored meanwhile
	return nil
}

func (s *shadow) Complete(ctx context.Context, tx pgx.Tx) error {
	lost := postgres.LostMessages{Beginning: s.observed.Lost(), Restored: s.observed.Restored()}
	return s.Keep(ctx, tx, lost)
}
