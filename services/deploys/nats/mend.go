package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/deploys/postgres"
)

const (
	// mendInterval is how often it is looked for facts that the stream lacks, beside every connection.
	mendInterval = time.Minute
	// mendAtOnce is how many workloads are looked at between two looks at the database.
	mendAtOnce = 100
)

// Mender keeps the stream DEPLOYS what the database knows it to be: it tells again what the stream has lost, and finds out where facts are whose position is not known,
// as after a rebuild. It works beside the reader and beside other replicas: the broker takes each fact once. All fields are required.
type Mender struct {
	Pool      *pgxpool.Pool
	JetStream jetstream.JetStream
	Cell      topology.Cell
	Logger    *slog.Logger
	Store     *postgres.Store
	// Metrics default to none.
	Metrics *Metrics
	// Again has it look at once; it may be nil.
	Again <-chan struct{}
}

// Part is the mender as a part of a service that has parts "database" and "streams".
func (m *Mender) Part() service.Part {
	return service.Part{Name: "mender", StartAfter: []string{"database", "streams"}, Run: func(ctx context.Context, self *service.Handle) error {
		self.Ready()
		return m.Run(ctx)
	}}
}

// Run mends until ctx is done. What fails is tried again.
func (m *Mender) Run(ctx context.Context) error {
	connected := m.JetStream.Conn().StatusChanged(nats.CONNECTED)
	defer m.JetStream.Conn().RemoveStatusListener(connected)
	interval := time.NewTicker(mendInterval)
	defer interval.Stop()
	for {
		if _, err := m.Mend(ctx); err != nil && ctx.Err() == nil {
			m.Logger.WarnContext(ctx, "it cannot be made sure that everything was told, trying on", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-connected:
		case <-interval.C:
		case <-m.Again:
		}
	}
}

// Mend looks once, and returns how many facts were told again.
func (m *Mender) Mend(ctx context.Context) (int, error) {
	stream, err := m.JetStream.Stream(ctx, topology.StreamDeploys)
	if err != nil {
		return 0, fmt.Errorf("open stream %s: %w", topology.StreamDeploys, err)
	}
	if err := m.compare(ctx, stream); err != nil {
		return 0, err
	}
	p := &public{js: m.JetStream, cell: m.Cell, stream: stream, store: m.Store, db: m.Pool}
	again := 0
	for {
		workloads, err := m.Store.Untold(ctx, m.Pool, mendAtOnce)
		if err != nil || len(workloads) == 0 {
			return again, err
		}
		for _, id := range sorted(workloads) {
			count, err := m.mend(ctx, p, id, workloads[id])
			for refusals := 0; conflict(err) && refusals < maxRefusals; refusals++ {
				// The reader, or another replica, was faster.
				count, err = m.mend(ctx, p, id, workloads[id])
			}
			if again += count; err != nil {
				return again, err
			}
		}
	}
}

func sorted(workloads map[uuid.UUID]int64) []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(workloads))
	for id := range workloads {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return ids
}

// compare looks whether the stream still has what it was told last. If not, it was restored from an older copy: it finds the last fact that both have, and forgets the
// positions of those after it.
func (m *Mender) compare(ctx context.Context, stream jetstream.Stream) error {
	newest, err := m.Store.LastTold(ctx, m.Pool)
	if postgres.Missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	first := int64(stream.CachedInfo().State.FirstSeq)
	if newest.StreamSequence < first {
		return nil // all of it is older than what the stream keeps
	}
	if there, err := has(ctx, stream, &newest); err != nil || there {
		return err
	}
	// Up to low both have the same, at high they do not.
	low, high := max(first-1, 0), newest.StreamSequence
	for low+1 < high {
		middle := (low + high) / 2
		f, err := m.Store.ToldAt(ctx, m.Pool, middle)
		if postgres.Missing(err) || err == nil && f.StreamSequence <= low {
			low = middle // nothing of ours between
			continue
		}
		if err != nil {
			return err
		}
		there, err := has(ctx, stream, &f)
		switch {
		case err != nil:
			return err
		case there:
			low = middle
		default:
			high = f.StreamSequence
		}
	}
	m.Logger.WarnContext(ctx, "the stream was restored from an older copy: what it lacks is told again", "stream", topology.StreamDeploys, "after", low)
	return m.Store.ForgetPositions(ctx, m.Pool, low)
}

// has says whether the stream has the fact at its position.
func has(ctx context.Context, stream jetstream.Stream, f *postgres.Fact) (bool, error) {
	m, err := stream.GetMsg(ctx, uint64(f.StreamSequence))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read message %d of stream %s: %w", f.StreamSequence, topology.StreamDeploys, err)
	}
	return readTold(m).id == f.ID, nil
}

// mend finds the facts of a workload from a sequence on, and tells those that are not there.
func (m *Mender) mend(ctx context.Context, p *public, workload uuid.UUID, from int64) (int, error) {
	everything := time.Time{}
	facts, err := m.Store.FactsBetween(ctx, m.Pool, workload, from-1, 1<<62, everything)
	if err != nil || len(facts) == 0 {
		return 0, err
	}
	positions := make(map[string]int64, len(facts))
	for i := range facts {
		positions[facts[i].ID] = postgres.TooOld // unless it is found, or told
	}
	one, err := readFact(&facts[0])
	if err != nil {
		return 0, err
	}
	w := &one.Workload
	filter := m.Cell.DeployAll(w.ClusterUID, w.Namespace, w.Kind, w.Name)
	tail, err := p.after(ctx, filter, 0)
	if err != nil {
		return 0, err
	}
	last := told{}
	for i := range tail {
		if _, ours := positions[tail[i].id]; ours {
			positions[tail[i].id] = tail[i].position
		}
		last = tail[i]
	}
	_, again, err := p.retell(ctx, workload, last, 1<<62)
	maps.Copy(positions, again)
	if err != nil {
		return 0, err
	}
	m.Metrics.retold(len(again))
	return len(again), m.Store.Locate(ctx, m.Pool, positions)
}
