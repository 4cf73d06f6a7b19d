package detection

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/ownership"
)

// Detector takes messages of OBSERVED in order. It is not safe for concurrent use.
type Detector struct {
	decoder   *observation.Decoder
	config    ingest.Config
	store     *memoryStore
	processor *ingest.Processor

	clusters map[string]struct{}
	// since and until are the bounds of the observed times; zero before the first message.
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
	d.config.Mode = ownership.Reread
	if restored {
		d.config.Mode = ownership.RereadRestored
	}
	d.store.addDecisions(reporters, claims)
	d.processor = ingest.New(d.config)
}

// ResolveProjects makes the detector decide on ownership itself, as the service does when it reads the stream first.
// Where the stream has dropped its first messages, the result may differ. Call it before the first message.
func (d *Detector) ResolveProjects(project func(agentID int64) (int64, bool)) {
	d.config.Projects = func(_ context.Context, agentID int64) (int64, error) {
		if id, known := project(agentID); known {
			return id, nil
		}
		return 0, ingest.UnknownAgentError{AgentID: agentID}
	}
	d.processor = ingest.New(d.config)
}

// Relevant reports whether the service reads a message on the subject.
func (d *Detector) Relevant(subject string) bool { return d.decoder.Relevant(subject) }

// Take takes the message at a position of the stream and returns the facts that follow from it. Error: the message is
// malformed, or rejected with an [*ownership.ForeignError] or [ingest.UnknownAgentError]. The service dead-letters it.
func (d *Detector) Take(sequence uint64, subject string, header nats.Header, data []byte) ([]events.DeployFact, error) {
	o, err := d.decoder.Decode(subject, header, data)
	if err != nil {
		return nil, err
	}
	return d.process(&o, sequence)
}

func (d *Detector) process(o *observation.Observation, sequence uint64) ([]events.DeployFact, error) {
	if !o.Relevant() {
		return nil, nil
	}
	messages := []ingest.Message{{Sequence: sequence, Observation: o}}
	result, err := d.processor.Process(context.Background(), d.store, messages)
	if rejected, is := errors.AsType[ingest.RejectedError](err); is {
		return nil, rejected[0].Err
	}
	if err != nil || result.Admitted == 0 {
		return nil, err
	}
	d.clusters[o.ClusterUID] = struct{}{}
	if d.since.IsZero() || o.ObservedAt.Before(d.since) {
		d.since = o.ObservedAt
	}
	if o.ObservedAt.After(d.until) {
		d.until = o.ObservedAt
	}
	facts := make([]events.DeployFact, len(result.Facts))
	for i, f := range result.Facts {
		facts[i] = f.DeployFact
	}
	return facts, nil
}

// Begin makes [Detector.Covers] start with the next message. State is kept.
func (d *Detector) Begin() { d.since, d.until = time.Time{}, time.Time{} }

// Covers reports whether the processed messages include the observation of a fact, by cluster and time.
func (d *Detector) Covers(f *events.DeployFact) bool {
	_, known := d.clusters[f.Workload.ClusterUID]
	return known && !f.ObservedAt.Before(d.since) && !f.ObservedAt.After(d.until)
}
