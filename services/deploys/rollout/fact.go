package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// What occurred_at was read from.
const (
	timeCreation      = events.TimeSourceCreationTimestamp
	timeManagedFields = events.TimeSourceManagedFields
	timeDeletion      = events.TimeSourceDeletionTimestamp
	timeCondition     = events.TimeSourceCondition
	timeObservation   = events.TimeSourceObservation
)

// tell gives the fact its number and puts it behind those told before.
func (p *step) tell(f events.DeployFact) {
	p.s.Sequence++
	f.Sequence = p.s.Sequence
	p.facts = append(p.facts, f)
}

// plain is a fact about the workload itself.
func (p *step) plain(fact events.Fact, occurred time.Time, source events.TimeSource) events.DeployFact {
	s := &p.s
	f := events.DeployFact{
		Fact: fact, OccurredAt: occurred, ObservedAt: p.at, TimeSource: source, Provenance: p.provenance,
		Workload: events.Workload{
			ClusterUID: s.Key.ClusterUID, AgentID: int(s.AgentID), Namespace: s.Key.Namespace, Kind: s.Key.Kind, Name: s.Key.Name, UID: s.UID,
		},
	}
	if s.View != nil {
		f.Workload.Labels, f.Workload.Annotations = s.View.Labels, s.View.Annotations
	}
	return f
}

// about is a fact of a rollout, with the annotations that its template came with.
func (p *step) about(r *Rollout, fact events.Fact, occurred time.Time, source events.TimeSource) events.DeployFact {
	f := p.plain(fact, occurred, source)
	f.Workload.Labels, f.Workload.Annotations = r.Labels, r.Notes
	f.Rollout = &events.Rollout{
		ID: r.ID, Revision: r.Revision, TemplateHash: r.Hash, Change: r.Change, OfRevision: r.OfRevision,
		Images: r.Template.Images, PreviousImages: r.Previous, StartedAt: new(r.StartedAt), StartedObservedAt: new(r.SeenAt),
		ReplicasAtStart: r.Replicas, ScaledDuring: r.Scaled, Strategy: r.Strategy,
	}
	f.Counts = new(r.Newest)
	return f
}

// repeated is a fact of a rollout that may come again.
func (p *step) repeated(r *Rollout, fact events.Fact, occurred time.Time, source events.TimeSource) events.DeployFact {
	at := slices.IndexFunc(r.Ordinals, func(o Ordinal) bool { return o.Fact == fact })
	if at < 0 {
		at = len(r.Ordinals)
		r.Ordinals = append(r.Ordinals, Ordinal{Fact: fact})
	}
	r.Ordinals[at].Last++
	f := p.about(r, fact, occurred, source)
	f.Ordinal = r.Ordinals[at].Last
	return f
}

func (p *step) repeat(r *Rollout, fact events.Fact, occurred time.Time, source events.TimeSource) {
	p.tell(p.repeated(r, fact, occurred, source))
}

func (p *step) scaling(fact events.Fact, v View) events.DeployFact {
	scaling := p.s.Scaling
	f := p.plain(fact, v.At, timeObservation)
	f.Workload.Labels, f.Workload.Annotations = v.Labels, v.Annotations
	f.Ordinal, f.Counts = scaling.Ordinal, new(v.Counts)
	f.Scale = &events.Scale{From: scaling.From, To: scaling.To}
	return f
}

// gap names what nobody saw.
func (p *step) gap(gap events.Gap) {
	f := p.plain(events.FactGap, gap.Until, timeObservation)
	f.Provenance, f.Gap = events.ProvenanceReconstructed, &gap
	p.tell(f)
}

// unknown ends the rollout in flight with an end that nobody saw.
func (p *step) unknown(gap events.Gap, at time.Time) {
	r := p.s.Rollout
	r.End = events.FactUnknown
	f := p.about(r, events.FactUnknown, at, timeObservation)
	f.Provenance, f.Gap = events.ProvenanceReconstructed, &gap
	f.Reason, f.Message = "Unseen", "nobody saw how it ended"
	if gap.Cause == events.CauseClusterReleased {
		f.Reason, f.Message = "Released", "its cluster was taken from its project before it ended"
	}
	p.tell(f)
}

// duration of the rollout to an end at that time, in milliseconds: as it was seen, where both its start and its end were.
func (p *step) duration(r *Rollout, at time.Time) *int {
	took := p.at.Sub(r.SeenAt)
	if p.provenance != events.ProvenanceObserved || r.Provenance != events.ProvenanceObserved {
		took = at.Sub(r.StartedAt)
	}
	return new(int(max(0, took.Milliseconds())))
}

// ID of a fact, the same whenever the same fact is told: a hash, in hex, of what it is about (rollout, run of an environment, or workload), its name and its
// ordinal, and of its sequence where it is about a workload.
func ID(f events.DeployFact) string {
	w := f.Workload
	parts := []string{string(f.Fact), strconv.Itoa(f.Ordinal)}
	switch {
	case f.Rollout != nil:
		parts = append(parts, "rollout", f.Rollout.ID)
	case f.Environment != nil:
		parts = append(parts, "environment", w.ClusterUID, w.Namespace, w.Name, f.Environment.Run, strconv.Itoa(f.Sequence))
	default:
		parts = append(parts, "workload", w.ClusterUID, w.Namespace, w.Kind, w.Name, w.UID, strconv.Itoa(f.Sequence))
	}
	hash := sha256.New()
	for _, part := range parts {
		_, _ = hash.Write([]byte(strconv.Itoa(len(part)) + ":" + part))
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}
