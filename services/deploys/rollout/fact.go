package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Sources of occurred_at.
const (
	timeCreation      = events.TimeSourceCreationTimestamp
	timeManagedFields = events.TimeSourceManagedFields
	timeDeletion      = events.TimeSourceDeletionTimestamp
	timeCondition     = events.TimeSourceCondition
	timeObservation   = events.TimeSourceObservation
)

// emit gives a fact its sequence number and appends it.
func (p *step) emit(f events.DeployFact) {
	p.s.Sequence++
	f.Sequence = p.s.Sequence
	p.facts = append(p.facts, f)
}

// workloadFact returns a fact about the workload itself.
func (p *step) workloadFact(fact events.Fact, occurred time.Time, source events.TimeSource) events.DeployFact {
	s := &p.s
	f := events.DeployFact{
		Fact: fact, OccurredAt: occurred, ObservedAt: p.at, TimeSource: source, Provenance: p.provenance,
		Workload: events.Workload{
			ClusterUID: s.Key.ClusterUID, AgentID: int(s.AgentID), Namespace: s.Key.Namespace, Kind: s.Key.Kind,
			Name: s.Key.Name, UID: s.UID,
		},
	}
	if s.View != nil {
		f.Workload.Labels, f.Workload.Annotations = s.View.Labels, s.View.Annotations
	}
	return f
}

// rolloutFact returns a fact about a rollout, with the annotations of its template.
func (p *step) rolloutFact(
	r *Rollout, fact events.Fact, occurred time.Time, source events.TimeSource,
) events.DeployFact {
	f := p.workloadFact(fact, occurred, source)
	f.Workload.Labels, f.Workload.Annotations = r.Labels, r.Annotations
	f.Rollout = &events.Rollout{
		ID: r.ID, Revision: r.Revision, TemplateHash: r.Hash, Change: r.Change, OfRevision: r.OfRevision,
		Images: r.Template.Images, PreviousImages: r.Previous, StartedAt: new(r.StartedAt), StartedObservedAt: new(r.SeenAt),
		ReplicasAtStart: r.Replicas, ScaledDuring: r.Scaled, Strategy: r.Strategy,
	}
	f.Counts = new(r.Newest)
	return f
}

// repeatableFact returns a fact that may occur repeatedly in a rollout.
func (p *step) repeatableFact(
	r *Rollout, fact events.Fact, occurred time.Time, source events.TimeSource,
) events.DeployFact {
	at := slices.IndexFunc(r.Ordinals, func(o Ordinal) bool { return o.Fact == fact })
	if at < 0 {
		at = len(r.Ordinals)
		r.Ordinals = append(r.Ordinals, Ordinal{Fact: fact})
	}
	r.Ordinals[at].Last++
	f := p.rolloutFact(r, fact, occurred, source)
	f.Ordinal = r.Ordinals[at].Last
	return f
}

func (p *step) emitRepeatable(r *Rollout, fact events.Fact, occurred time.Time, source events.TimeSource) {
	p.emit(p.repeatableFact(r, fact, occurred, source))
}

func (p *step) scalingFact(fact events.Fact, v View) events.DeployFact {
	scaling := p.s.Scaling
	f := p.workloadFact(fact, v.At, timeObservation)
	f.Workload.Labels, f.Workload.Annotations = v.Labels, v.Annotations
	f.Ordinal, f.Counts = scaling.Ordinal, new(v.Counts)
	f.Scale = &events.Scale{From: scaling.From, To: scaling.To}
	return f
}

// emitGap emits a gap: a period or revisions without observations.
func (p *step) emitGap(gap events.Gap) {
	f := p.workloadFact(events.FactGap, gap.Until, timeObservation)
	f.Provenance, f.Gap = events.ProvenanceReconstructed, &gap
	p.emit(f)
}

// endUnknown ends the rollout in flight as unknown: its end was not observed. It emits the gap unless one has it.
func (p *step) endUnknown(gap events.Gap, at time.Time) {
	r := p.s.Rollout
	if !slices.ContainsFunc(p.facts, func(f events.DeployFact) bool {
		return f.Fact == events.FactGap && f.Workload.UID == p.s.UID && slices.Contains(f.Gap.Revisions, r.Revision) &&
			!f.Gap.Since.After(gap.Since) && !f.Gap.Until.Before(gap.Until)
	}) {
		p.emitGap(gap)
	}
	r.End = events.FactUnknown
	f := p.rolloutFact(r, events.FactUnknown, at, timeObservation)
	f.Provenance, f.Gap = events.ProvenanceReconstructed, &gap
	f.Reason, f.Message = "Unseen", "nobody saw how it ended"
	if gap.Cause == events.CauseClusterReleased {
		f.Reason, f.Message = "Released", "its cluster was taken from its project before it ended"
	}
	p.emit(f)
}

// durationUntil returns the duration of the rollout in milliseconds. It uses the times of observation if both start and
// end were observed.
func (p *step) durationUntil(r *Rollout, at time.Time) *int {
	took := p.at.Sub(r.SeenAt)
	if p.provenance != events.ProvenanceObserved || r.Provenance != events.ProvenanceObserved {
		took = at.Sub(r.StartedAt)
	}
	return new(int(max(0, took.Milliseconds())))
}

// ID returns the id of a fact. Equal facts have equal ids. It is a hash in hex of the fact's name and ordinal and of
// what it is about: a rollout, a run of an environment, or a workload. The id of a fact about an environment or a
// workload also depends on its sequence number.
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
	var text [512]byte
	joined := text[:0]
	for _, part := range parts {
		joined = append(append(strconv.AppendInt(joined, int64(len(part)), 10), ':'), part...)
	}
	hash := sha256.Sum256(joined)
	return hex.EncodeToString(hash[:16])
}
