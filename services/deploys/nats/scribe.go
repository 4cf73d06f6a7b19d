package nats

import (
	"context"

	"github.com/google/uuid"

	"lockstep.internal/services/deploys/postgres"
)

// inscribed is how many acknowledged facts are worth a statement. While one is under way more come together.
const inscribed = 128

// written is a fact that is on the stream, for the database.
type written struct {
	workload uuid.UUID
	telling  *telling
}

// scribe writes beside what goes on, one thing at a time. The transaction is its own until it was waited for.
type scribe struct {
	done chan struct{}
	err  error
}

// free says that nothing is being written.
func (s *scribe) free() bool {
	select {
	case <-s.done:
		return true
	default:
		return s.done == nil
	}
}

// begin begins to write, once what was begun before is written. After a failure nothing more is.
func (s *scribe) begin(write func() error) {
	if s.wait() != nil {
		return
	}
	done := make(chan struct{})
	s.done = done
	go func() {
		defer close(done)
		s.err = write()
	}()
}

// wait until everything is written, and give the first failure.
func (s *scribe) wait() error {
	if s.done != nil {
		<-s.done
	}
	return s.err
}

// inscribe begins to write what was acknowledged, and all about workloads of which everything is told: they are stored while others are on their way. The
// transaction is committed only when all are there.
func (in *intake) inscribe(ctx context.Context) {
	facts, chains := in.acknowledged, in.finished
	in.acknowledged, in.finished = nil, nil
	in.scribe.begin(func() error {
		var writing postgres.Writing
		for _, f := range facts {
			row, err := f.telling.row(in.Cell, f.workload)
			if err != nil {
				return err
			}
			writing.Facts = append(writing.Facts, row)
			f.telling.stored = true
		}
		for _, c := range chains {
			if err := c.store(&writing); err != nil {
				return err
			}
		}
		return in.Store.Save(ctx, in.tx, writing)
	})
}
