package cellmap

import (
	"context"
	"fmt"
	"log/slog"
	"math"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	storedmessages "lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
)

// Load returns the map as it is now. Unlike that of [New] it does not follow changes. The user needs the right to read
// the bucket.
func Load(ctx context.Context, js jetstream.JetStream, logger *slog.Logger) (*Map, error) {
	m := &Map{logger: logger, entries: map[key]stored{}, changed: make(chan struct{})}
	reader := storedmessages.Reader{JetStream: js, Stream: topology.StreamCells}
	err := reader.Read(ctx, topology.CellsEntries, 1, math.MaxUint64, func(message storedmessages.Message) error {
		if err := m.apply(message.Subject, message.Data); err != nil {
			logger.ErrorContext(ctx, "dropped a malformed entry of the cell map", logkey.Error(err))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the cell map: %w", err)
	}
	return m, nil
}
