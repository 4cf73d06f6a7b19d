package ingest

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/metrics"
	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/ownership"
	"lockstep.internal/services/deploys/publish"
)

// Message is a message of OBSERVED.
type Message struct {
	// Sequence is its position on the stream.
	Sequence    uint64
	Observation *observation.Observation
}

// Publisher publishes the facts of a batch. [publish.Publisher] implements it.
type Publisher interface {
	Publish(ctx context.Context, facts publish.Facts, queues []*publish.Queue) (map[string]int64, error)
}

// Config of a [Processor]. Fields are required unless they name a default.
type Config struct {
	Logger *slog.Logger
	// Projects returns the project of an agent. Only mode [ownership.FirstRead] uses it.
	Projects Projects
	// Mode states which of the stored claims applies to a message. Defaults to [ownership.FirstRead].
	Mode ownership.Mode
	// Publisher publishes facts. Defaults to none: the facts are only stored.
	Publisher    Publisher
	Environments environment.Rules
	History      history.Rules
	// Limits of each agent. Default to [agents.DefaultLimits].
	Limits agents.Rows
	// CachedRecords limits the workloads, and the environments, kept in memory. Defaults to none.
	CachedRecords int
	// Metrics default to none.
	Metrics *metrics.Metrics
}

// Processor processes batches of one stream in order. It is not safe for concurrent use.
type Processor struct {
	logger           *slog.Logger
	projects         Projects
	mode             ownership.Mode
	publisher        Publisher
	environmentRules environment.Rules
	history          history.Rules
	limits           agents.Rows
	metrics          *metrics.Metrics
	cache            *cache
	// refusedAt is when refused rows of an agent were logged.
	refusedAt map[int64]time.Time
}

// New returns a processor.
func New(cfg Config) *Processor {
	projects := cfg.Projects
	if projects == nil || cfg.Mode != ownership.FirstRead {
		projects = func(_ context.Context, agentID int64) (int64, error) { return 0, UnknownAgentError{agentID} }
	}
	limits := cfg.Limits
	if limits == (agents.Rows{}) {
		limits = agents.DefaultLimits()
	}
	return &Processor{
		logger: cfg.Logger, projects: projects, mode: cfg.Mode, publisher: cfg.Publisher,
		environmentRules: cfg.Environments, history: cfg.History, limits: limits, metrics: cfg.Metrics,
		cache: newCache(cfg.CachedRecords), refusedAt: map[int64]time.Time{},
	}
}

// SetMode changes the mode between batches. It drops the cached claims, because another process may have stored new
// ones.
func (p *Processor) SetMode(mode ownership.Mode) {
	p.mode = mode
	clear(p.cache.claims)
}

// Result of a batch.
type Result struct {
	// Admitted are the messages that were applied. The others were irrelevant or dropped.
	Admitted []Message
	// Facts in order: those of workloads, then those of environments.
	Facts []*publish.Fact
}

// Process processes a batch within the transaction of the store. The caller commits the transaction, or rolls it back
// after an error. After a [RejectedError], the caller processes the batch again without the rejected messages. Other
// errors are temporary.
func (p *Processor) Process(ctx context.Context, store Store, messages []Message) (Result, error) {
	b, number, err := p.begin(ctx, store, messages)
	if err != nil {
		return Result{}, err
	}
	admitted, err := b.admit(ctx, messages)
	if err != nil {
		return Result{}, err
	}
	for _, m := range admitted {
		if err := b.apply(ctx, m.Observation); err != nil {
			return Result{}, err
		}
	}
	if err := b.applySteps(ctx); err != nil {
		return Result{}, err
	}
	positions, err := b.publish(ctx)
	if err != nil {
		return Result{}, err
	}
	changes := b.changes()
	changes.Positions = positions
	if err := store.Save(ctx, changes); err != nil {
		return Result{}, err
	}
	p.reportRefused(ctx, b.refused, time.Now())
	b.commit()
	p.cache.batch = number
	return Result{Admitted: admitted, Facts: changes.Facts}, nil
}

// begin increments the batch number and loads the state that the batch needs. It drops the cache if another process has
// written since the last batch, or if that batch was rolled back.
func (p *Processor) begin(ctx context.Context, store Store, messages []Message) (*batch, int64, error) {
	if p.cache.batch == 0 {
		p.cache.clear()
	}
	number, loaded, err := store.Begin(ctx, p.query(messages))
	if err != nil {
		return nil, 0, err
	}
	if p.cache.batch != 0 && number != p.cache.batch+1 {
		p.cache.clear()
		if loaded, err = store.Load(ctx, p.query(messages)); err != nil {
			return nil, 0, err
		}
	}
	p.cache.add(&loaded)
	b := &batch{
		Processor: p, store: store, agents: agents.New(p.cache.agents),
		claims:       ownership.NewClaims(p.mode, p.cache.reporters, p.cache.claims),
		workloads:    newRecords(p.cache.workloads.records),
		environments: newRecords(p.cache.environments.records),
		members:      map[Member]struct{}{},
		refused:      map[int64]int{},
	}
	b.workloads.load(loaded.Workloads)
	b.environments.load(loaded.Environments)
	return b, number, nil
}

// query returns the query for the state that the messages need and the cache lacks.
func (p *Processor) query(messages []Message) Query {
	q := Query{Agents: p.cache.batch == 0}
	requested := make(map[uuid.UUID]struct{}, len(messages))
	for _, m := range messages {
		o := m.Observation
		if !o.Relevant() {
			continue
		}
		if _, known := p.cache.reporters[o.AgentID]; !known && o.AgentID != 0 && !slices.Contains(q.ReporterIDs, o.AgentID) {
			q.ReporterIDs = append(q.ReporterIDs, o.AgentID)
		}
		if _, known := p.cache.claims[o.ClusterUID]; !known && !slices.Contains(q.ClaimClusters, o.ClusterUID) {
			q.ClaimClusters = append(q.ClaimClusters, o.ClusterUID)
		}
		if o.Tick {
			if !slices.Contains(q.DueClusters, o.ClusterUID) {
				q.DueClusters = append(q.DueClusters, o.ClusterUID)
			}
			if o.ObservedAt.After(q.DueAt) {
				q.DueAt = o.ObservedAt
			}
		}
		if o.Workload == nil && o.Revision == nil && o.Pods == nil {
			continue
		}
		if _, done := requested[o.ID]; done {
			continue
		}
		requested[o.ID] = struct{}{}
		if _, cached := p.cache.workloads.records[o.ID]; !cached {
			q.WorkloadIDs = append(q.WorkloadIDs, o.ID)
		}
	}
	return q
}
