package nats

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/publish"
)

// Jobs reads the stream JOBS.
type Jobs struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
}

// pageSize is the number of events that are handled together.
const pageSize = 1000

// Bounds returns the sequences of the first and of the last message; 0 if there is none.
func (j Jobs) Bounds(ctx context.Context) (first, last uint64, err error) {
	stream, err := j.JetStream.Stream(ctx, topology.StreamJobs)
	if err != nil {
		return 0, 0, fmt.Errorf("open stream %s: %w", topology.StreamJobs, err)
	}
	state := stream.CachedInfo().State
	return state.FirstSeq, state.LastSeq, nil
}

// Read calls take with events in pages, and the sequence of the last event of each. An event that cannot be
// decoded is an error.
func (j Jobs) Read(
	ctx context.Context, from, to uint64, take func(changes []job.Change, last uint64) error,
) error {
	reader := stored.Reader{JetStream: j.JetStream, Stream: topology.StreamJobs}
	var page []job.Change
	var last uint64
	flush := func() error {
		if len(page) == 0 {
			return nil
		}
		changes := page
		page = nil
		return take(changes, last)
	}
	err := reader.Read(ctx, j.Cell.All(topology.FamilyJob), from, to, func(m stored.Message) error {
		decoded, err := event.Decode(m.Header, m.Data)
		if err == nil {
			read := job.Change{Event: publish.EventOf(decoded.Type()), At: decoded.Time()}
			if read.Job, err = publish.DecodeJob(decoded.Data()); err == nil {
				page, last = append(page, read), m.Sequence
			}
		}
		if err != nil {
			return fmt.Errorf("message %d of stream %s: %w", m.Sequence, topology.StreamJobs, err)
		}
		if len(page) < pageSize {
			return nil
		}
		return flush()
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", topology.StreamJobs, err)
	}
	return flush()
}
