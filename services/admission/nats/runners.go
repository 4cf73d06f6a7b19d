package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/lastvalue"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/admission/policy"
)

// Runners is a copy of the stream RUNNERS in memory. The higher revision of a runner wins, so a stream that was
// restored from an older copy changes nothing. It is safe for concurrent use.
type Runners struct {
	reader *lastvalue.Reader
	cell   topology.Cell
	logger *slog.Logger

	mu    sync.RWMutex
	known map[int64]events.RunnerChanged
	// loading replaces known when the stream was replaced; nil otherwise.
	loading map[int64]events.RunnerChanged
}

// NewRunners returns an empty copy. Its reader fills it.
func NewRunners(js jetstream.JetStream, cell topology.Cell, logger *slog.Logger) *Runners {
	r := &Runners{cell: cell, logger: logger, known: map[int64]events.RunnerChanged{}}
	r.reader = lastvalue.NewReader(lastvalue.Config{
		JetStream: js, Stream: topology.StreamRunners, Subjects: cell.All(topology.FamilyRunner),
		Live: cell.All(topology.FamilyRunnerLive), Handler: (*runnerLoader)(r), Logger: logger,
	})
	return r
}

// Run reads the stream until ctx ends. It calls ready once the copy is complete.
func (r *Runners) Run(ctx context.Context, ready func()) error {
	r.reader.Run(ctx, ready)
	return nil
}

// Ready reports whether the copy was complete once.
func (r *Runners) Ready() bool { return r.reader.Ready() }

// Check is a health check.
func (r *Runners) Check(ctx context.Context) error {
	return r.reader.Check(ctx)
}

// Of returns the runners whose scope includes a job of a project in groups, by id. A protected runner takes protected
// jobs only.
func (r *Runners) Of(projectID int64, groups []int64, protected bool) []events.RunnerChanged {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []events.RunnerChanged
	for _, id := range slices.Sorted(maps.Keys(r.known)) {
		if known := r.known[id]; !known.Deleted && includes(known, projectID, groups) && (protected || !known.Protected) {
			out = append(out, known)
		}
	}
	return out
}

func includes(r events.RunnerChanged, projectID int64, groups []int64) bool {
	switch r.Type {
	case events.RunnerTypeInstanceType:
		return true
	case events.RunnerTypeGroupType:
		return slices.Contains(groups, int64(r.GroupID))
	case events.RunnerTypeProjectType:
		return slices.Contains(r.ProjectIds, int(projectID))
	default:
		return false
	}
}

// ForPolicy returns what policies know about a runner.
func ForPolicy(r events.RunnerChanged) policy.Runner {
	return policy.Runner{
		ID: int64(r.RunnerID), Description: r.Description, Type: string(r.Type), Tags: r.Tags, RunUntagged: r.RunUntagged,
		Protected: r.Protected, Paused: r.Paused,
	}
}

// runnerLoader receives what the reader reads.
type runnerLoader Runners

// Begin implements [lastvalue.Handler].
func (l *runnerLoader) Begin(replaced bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loading = nil
	if replaced {
		l.loading = map[int64]events.RunnerChanged{}
	}
}

// Apply implements [lastvalue.Handler].
func (l *runnerLoader) Apply(ctx context.Context, m lastvalue.Message) {
	changed, err := l.decode(m)
	if err != nil {
		l.logger.WarnContext(ctx, "ignored a message about a runner", logkey.Error(err))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	into := l.known
	if l.loading != nil {
		into = l.loading
	}
	if known, found := into[int64(changed.RunnerID)]; !found || known.Revision <= changed.Revision {
		into[int64(changed.RunnerID)] = changed
	}
}

func (l *runnerLoader) decode(m lastvalue.Message) (events.RunnerChanged, error) {
	var changed events.RunnerChanged
	if err := json.Unmarshal(m.Data, &changed); err != nil {
		return changed, fmt.Errorf("decode %s: %w", m.Subject, err)
	}
	if l.cell.Runner(int64(changed.RunnerID)) != m.Subject {
		return changed, fmt.Errorf("%s is about runner %d", m.Subject, changed.RunnerID)
	}
	return changed, nil
}

// Loaded implements [lastvalue.Handler].
func (l *runnerLoader) Loaded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loading != nil {
		l.known, l.loading = l.loading, nil
	}
}
