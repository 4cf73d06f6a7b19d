package cellmap

import "log/slog"

// NewEmpty returns a map without a reader.
func NewEmpty(logger *slog.Logger) *Map {
	return &Map{logger: logger, entries: map[key]stored{}, changed: make(chan struct{})}
}

// Apply stores an entry.
func (m *Map) Apply(subject string, data []byte) error { return m.apply(subject, data) }
