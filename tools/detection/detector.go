package detection

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/ownership"
)

// Detector processes messages of OBSERVED in order. It is not safe for concurrent use.
type Detector struct {
	decoder   *observation.Decoder
	config    ingest.Config
	store     *memoryStore
	processor *ingest.Processor

	clusters map[string]struct{}
	// since and until are the bounds of the observed times in the range; zero before the first message.
	since, until time.Time
}

// New returns a detector without any state. The rules are those of the service's configuration. All agents belong to
// one project, unless [Detector.UseDecisions] or [Detector.ResolveProjects] is called.
func New(cell topology.Cell, rules environment.Rules) *Detector {
	d := &Detector{
		decoder: observation.NewDecoder(cell), store: newMemoryStore(), clusters: map[string]struct{}{},
		config: ingest.Config{
			Logger: slog.New(slog.DiscardHandler), Environments: rules,
			Projects: func(context.Context, int64) (int64, error) { return 1, nil },
		},
	}
	d.processor = ingest.New(d.config)
	return d
}

// UseDecisions makes the detector repeat stored decisions on ownership, by the position of each message, or by the
// newest decision if the stream was restored since. Call it before the first message.
func (d *Detector) UseDecisions(restored bool, reporters []ownership.Reporter, claims []ownership.Claim) {
	d.config.Mode = ownership.Replay
	if restored {
		d.config.Mode = ownership.ReplayRestored
	}
	d.store.addDecisions(reporters, claims)
	d.processor = ingest.New(d.config)
}

// ResolveProjects makes the detector decide on ownership itself, as the service does when it reads the stream first.
// Where the stream has dropped its first messages, the result may differ. The error of project is
// [ingest.UnknownAgentError] for an unknown agent; any other ends the replay. Call it before the first message.
func (d *Detector) ResolveProjects(project func(ctx context.Context, agentID int64) (int64, error)) {
	d.config.Projects = project
	d.processor = ingest.New(d.config)
}

// Relevant reports whether the service reads a message on the subject.
func (d *Detector) Relevant(subject string) bool { return d.decoder.Relevant(subject) }

// Take processes the message at a position of the stream and returns its facts. Error: the message is malformed, or
// rejected with an [*ownership.ForeignError] or [ingest.UnknownAgentError]. The service dead-letters it.
func (d *Detector) Take(sequence uint64, subject string, header nats.Header, data []byte) ([]events.DeployFact, error) {
	facts, rejected, err := d.process(context.Background(), []message{d.decode(sequence, subject, header, data)})
	if len(rejected) > 0 {
		err = rejected[0].Err
	}
	return facts, err
}

// Covers reports whether the processed messages include the observation of a fact, by cluster and time. Messages before
// the range of a replay do not count.
func (d *Detector) Covers(f *events.DeployFact) bool {
	_, known := d.clusters[f.Workload.ClusterUID]
	return known && !f.ObservedAt.Before(d.since) && !f.ObservedAt.After(d.until)
}

// message is a decoded message.
type message struct {
	subject     string
	sequence    uint64
	observation observation.Observation
	// err reports a malformed message.
	err error
	// beforeRange is true for a message before the range of a replay.
	beforeRange bool
}

func (d *Detector) decode(sequence uint64, subject string, header nats.Header, data []byte) message {
	o, err := d.decoder.Decode(subject, header, data)
	return message{subject: subject, sequence: sequence, observation: o, err: err}
}

// process processes a batch as the service does: it takes the rejected messages out and processes the others. It
// returns the facts of the batch, those of workloads first, and the malformed and rejected messages in order.
func (d *Detector) process(ctx context.Context, messages []message) ([]events.DeployFact, []Rejection, error) {
	var rejections []Rejection
	batch := make([]ingest.Message, 0, len(messages))
	accepted := make(map[uint64]*message, len(messages))
	for i := range messages {
		m := &messages[i]
		switch {
		case m.err != nil:
			rejections = append(rejections, m.rejection(m.err))
		case m.observation.Relevant():
			batch = append(batch, ingest.Message{Sequence: m.sequence, Observation: &m.observation})
			accepted[m.sequence] = m
		}
	}
	var result ingest.Result
	for len(batch) > 0 {
		var err error
		result, err = d.processor.Process(ctx, d.store, batch)
		if err == nil {
			break
		}
		rejected, is := errors.AsType[ingest.RejectedError](err)
		if !is {
			return nil, nil, err
		}
		for _, r := range rejected {
			rejections = append(rejections, accepted[r.Sequence].rejection(r.Err))
			delete(accepted, r.Sequence)
		}
		batch = slices.DeleteFunc(batch, func(m ingest.Message) bool { return accepted[m.Sequence] == nil })
	}
	for _, m := range result.Admitted {
		d.cover(accepted[m.Sequence])
	}
	slices.SortFunc(rejections, func(a, b Rejection) int { return cmp.Compare(a.Sequence, b.Sequence) })
	facts := make([]events.DeployFact, len(result.Facts))
	for i, f := range result.Facts {
		facts[i] = f.DeployFact
	}
	return facts, rejections, nil
}

// cover extends what [Detector.Covers] reports.
func (d *Detector) cover(m *message) {
	o := &m.observation
	d.clusters[o.ClusterUID] = struct{}{}
	if m.beforeRange {
		return
	}
	if d.since.IsZero() || o.ObservedAt.Before(d.since) {
		d.since = o.ObservedAt
	}
	if o.ObservedAt.After(d.until) {
		d.until = o.ObservedAt
	}
}
