package cellmap

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/lastvalue"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
)

// Config of a map.
type Config struct {
	// JetStream has a connection that reconnects for ever. Its user may read the bucket without consumers. Required.
	JetStream jetstream.JetStream
	// Cell is the cell of the NATS system that has the bucket. Required.
	Cell topology.Cell
	// Logger. Required.
	Logger *slog.Logger
	// Probe is the time between two checks of the bucket. Defaults to 5 s.
	Probe time.Duration
	// StaleAfter is the time without the bucket after which [Map.Check] reports it. Defaults to 30 s.
	StaleAfter time.Duration
}

// ErrInvalidConfig is wrapped by errors about a configuration that cannot work.
var ErrInvalidConfig = errors.New("invalid configuration of the cell map")

// Map is a live copy of the map. It is empty before it is ready. It is safe for concurrent use.
type Map struct {
	reader *lastvalue.Reader
	logger *slog.Logger

	mu      sync.RWMutex
	entries map[key]stored
	cells   int           // without those that were removed
	changed chan struct{} // closed with the next change of a cell
}

// New returns an empty map. [Map.Run] fills it.
func New(cfg Config) (*Map, error) {
	switch {
	case cfg.JetStream == nil:
		return nil, fmt.Errorf("%w: no JetStream", ErrInvalidConfig)
	case cfg.Logger == nil:
		return nil, fmt.Errorf("%w: no logger", ErrInvalidConfig)
	case cfg.Probe < 0 || cfg.StaleAfter < 0:
		return nil, fmt.Errorf("%w: a negative time", ErrInvalidConfig)
	}
	if err := topology.ValidateCell(string(cfg.Cell)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	m := &Map{logger: cfg.Logger, entries: map[key]stored{}, changed: make(chan struct{})}
	m.reader = lastvalue.NewReader(lastvalue.Config{
		JetStream: cfg.JetStream, Stream: topology.StreamCells, Subjects: topology.CellsEntries,
		Live: cfg.Cell.All(topology.FamilyCellsLive), Handler: (*handler)(m), Logger: cfg.Logger,
		Probe: cfg.Probe, StaleAfter: cfg.StaleAfter,
	})
	return m, nil
}

// Part runs the map as a part of a service, named cells, after the part nats.
func (m *Map) Part() service.Part {
	return service.Part{
		Name: "cells", StartAfter: []string{"nats"}, Check: m.Check,
		Run: func(ctx context.Context, self *service.Handle) error {
			m.Run(ctx, self.Ready)
			return nil
		},
	}
}

// Run keeps the map until ctx is done, and calls ready once it is loaded for the first time. It waits for an
// unavailable server or a missing bucket.
func (m *Map) Run(ctx context.Context, ready func()) { m.reader.Run(ctx, ready) }

// Check is a health check. It fails before the map is loaded, and is degraded when the bucket has not been read for
// StaleAfter: the last known map is in force.
func (m *Map) Check(ctx context.Context) error { return m.reader.Check(ctx) }

// Ready reports whether the map was loaded once.
func (m *Map) Ready() bool { return m.reader.Ready() }

// Changed returns a channel that is closed by the next change. Get it before the query whose result may change.
func (m *Map) Changed() <-chan struct{} {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.changed
}

// Cell returns the cell of this name, and false when there is none.
func (m *Map) Cell(name topology.Cell) (Cell, bool) {
	content, found := m.get(key{cell: name})
	if !found {
		return Cell{}, false
	}
	return content.asCell(name), true
}

// CellDeleted reports whether an administrator removed the cell of this name. A cell that is unknown may be missing
// because the bucket was lost.
func (m *Map) CellDeleted(name topology.Cell) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.entries[key{cell: name}].Deleted
}

// HasCells reports whether there is a cell. A map without one was lost, or is new.
func (m *Map) HasCells() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.cells > 0
}

// Cells returns all cells, sorted by name.
func (m *Map) Cells() []Cell {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var cells []Cell
	for k, content := range m.entries {
		if k.isCell() && !content.Deleted {
			cells = append(cells, content.asCell(k.cell))
		}
	}
	slices.SortFunc(cells, func(a, b Cell) int { return cmp.Compare(a.Name, b.Name) })
	return cells
}

// Organization returns the name of the cell of an organization, and false when the map does not say.
func (m *Map) Organization(id int64) (topology.Cell, bool) {
	content, found := m.get(key{organization: id})
	return content.Cell, found
}

// Organizations returns all organizations, sorted by id.
func (m *Map) Organizations() []Organization {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var organizations []Organization
	for k, content := range m.entries {
		if k.organization != 0 && k.cell == "" && !content.Deleted {
			organizations = append(organizations, Organization{ID: k.organization, Cell: content.Cell})
		}
	}
	slices.SortFunc(organizations, func(a, b Organization) int { return cmp.Compare(a.ID, b.ID) })
	return organizations
}

// Moved returns where a cell says that an organization went, and false when it does not.
func (m *Map) Moved(from topology.Cell, organization int64) (Move, bool) {
	content, found := m.get(key{cell: from, organization: organization})
	return Move{From: from, Organization: organization, To: content.Cell, Number: content.Number}, found
}

// Legacy returns the name of the cell of unknown tokens, and false when there is none.
func (m *Map) Legacy() (topology.Cell, bool) {
	content, found := m.get(key{legacy: true})
	return content.Cell, found
}

// Key returns a public key of a cell's job tokens. It is a [jobtoken.Keys].
func (m *Map) Key(cell topology.Cell, id string) (ed25519.PublicKey, bool) {
	content, found := m.get(key{cell: cell})
	if !found || content.Keys == nil {
		return nil, false
	}
	return content.Keys.Find(id)
}

func (m *Map) get(k key) (stored, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	content, found := m.entries[k]
	if !found || content.Deleted {
		return stored{}, false
	}
	return content, true
}

// apply stores an entry unless the map has one of the same or a higher generation.
func (m *Map) apply(subject string, data []byte) error {
	k, content, err := parse(subject, data)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known, found := m.entries[k]
	if found && known.Generation >= content.Generation {
		return nil
	}
	if k.isCell() && found && !known.Deleted {
		m.cells--
	}
	if k.isCell() && !content.Deleted {
		m.cells++
	}
	m.entries[k] = content
	close(m.changed)
	m.changed = make(chan struct{})
	return nil
}

// handler applies what the reader reads. Nothing is ever removed: generations decide, also in another stream.
type handler Map

// Begin implements lastvalue.Handler.
func (h *handler) Begin(replaced bool) {
	if replaced {
		h.logger.Warn("the bucket of the cell map was restored or recreated; newer known entries remain in force")
	}
}

// Apply implements lastvalue.Handler.
func (h *handler) Apply(ctx context.Context, message lastvalue.Message) {
	if err := (*Map)(h).apply(message.Subject, message.Data); err != nil {
		h.logger.ErrorContext(ctx, "dropped a malformed entry of the cell map", logkey.Error(err))
	}
}

// Loaded implements lastvalue.Handler.
func (h *handler) Loaded() {}
