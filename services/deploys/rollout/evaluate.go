package rollout

import (
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
)

const (
	// progressInterval is the minimum time between two progressed facts, by observed_at.
	progressInterval = 2 * time.Second
	// defaultDeadline is the time without progress after which a rollout stalls, unless the workload has a deadline.
	defaultDeadline = 10 * time.Minute
	// deadlineConfirmation is the time from the first tick after the deadline to the stalled fact. Delayed observations
	// arrive within this time.
	deadlineConfirmation = 10 * time.Second
)

// evaluate derives the facts of the rollout and of the scaling in flight from the view. before is the previous view.
func (p *step) evaluate(before, v View) {
	s := &p.s
	if r := s.Rollout; r != nil && p.describesRollout(r, v) {
		if r.End == "" {
			p.evaluateRollout(r, before, v)
		}
		if r.End == events.FactCompleted && !r.Drained && v.isObserved() && v.isDrained() {
			r.Drained = true
			f := p.rolloutFact(r, events.FactDrained, v.At, timeObservation)
			f.Counts = new(v.Counts)
			p.emit(f)
		}
	}
	p.evaluateScaling(before, v)
	p.evaluateCreation(v)
}

// describesRollout reports whether the view describes the rollout, and not a newer revision that is not processed yet.
func (p *step) describesRollout(r *Rollout, v View) bool {
	if r.Name != p.s.Name {
		return false
	}
	if p.s.Key.Kind == StatefulSet {
		return v.Update == r.Name
	}
	return v.Revision == p.s.Last
}

// evaluateRollout derives the facts of a rollout in flight.
func (p *step) evaluateRollout(r *Rollout, before, v View) {
	if v.Template.equals(r.Template) {
		r.Labels, r.Annotations = v.Labels, v.Annotations
	}
	if p.s.Key.Kind == DaemonSet && before.Observed == 0 {
		r.Replicas = v.Counts.Desired // the number of nodes was unknown before
	}
	if before.Partition != v.Partition || before.Strategy != v.Strategy {
		r.ProgressAt, r.OverdueSince = v.At, time.Time{}
	}
	if v.Counts.Desired != r.Replicas {
		r.Scaled = true
	}
	if v.Paused != r.Paused {
		r.Paused, r.ProgressAt, r.OverdueSince = v.Paused, v.At, time.Time{}
		fact := events.FactResumed
		if v.Paused {
			fact = events.FactPaused
		}
		p.emitRepeatable(r, fact, v.At, timeObservation)
	}
	if p.s.Key.Kind == Deployment && v.isObserved() && r.Template.known() && !v.Template.equals(r.Template) {
		return // the counts belong to another template
	}
	if isProgress(r.Newest, v.Counts) {
		r.ProgressAt, r.OverdueSince = v.At, time.Time{}
	}
	changed := r.Newest.Desired != v.Counts.Desired || countsArray(r.Newest) != countsArray(v.Counts)
	r.Newest = v.Counts
	p.evaluateCondition(r, v, r.advance(before, v))
	p.evaluateBlocked(r, v)
	if v.isComplete(p.s.Key.Kind) && p.countsApply(r, v) || p.mayHaveCompleted() && r.confirmedBy(v.Progress) {
		p.completeRollout(r, v)
		return
	}
	p.evaluatePartition(r, v)
	if changed {
		r.ReportDue = countsArray(r.Newest) != countsArray(r.Reported)
		p.emitProgress(false)
	}
}

// countsApply reports whether the view's counts are those of the rollout's template. A paused Deployment may have a
// newer template that it does not roll out yet.
func (p *step) countsApply(r *Rollout, v View) bool {
	switch {
	case p.s.Key.Kind != Deployment:
		return true
	case p.hasLaterPending(v, p.s.TakenVersion):
		return false
	case r.Template.known():
		return v.Template.equals(r.Template)
	case v.Progress.Reason != reasonAvailable && p.namesOtherReplicaSet(v.Progress.Message, r.Name):
		return false
	case v.Strategy == recreate && v.Counts.Updated == 0 && !v.isDrained():
		// The ReplicaSet of a newer template is created only after the old pods are gone.
		return v.Progress.Reason == reasonAvailable && v.Progress.names(r.Name)
	default: // its template is unknown: compare with the one observed at its start
		return !v.Paused || v.Counts.Updated > 0 && v.Template.equals(p.templateAt(p.s.Generation))
	}
}

// countsArray returns the counts in a comparable form.
func countsArray(c Counts) [7]int {
	terminating := -1
	if c.Terminating != nil {
		terminating = *c.Terminating
	}
	return [7]int{c.Desired, c.Total, c.Updated, c.Ready, c.Available, c.Unavailable, terminating}
}

// isProgress reports whether the rollout made progress, by the rule of the Deployment controller.
func isProgress(before, now Counts) bool {
	return now.Updated > before.Updated || now.Total-now.Updated < before.Total-before.Updated ||
		now.Ready > before.Ready || now.Available > before.Available
}

// emitProgress emits a progressed fact if the counts changed, at most once per interval.
func (p *step) emitProgress(ticked bool) {
	r := p.s.Rollout
	if r == nil || r.End != "" || !r.ReportDue || p.at.Sub(r.ReportedAt) < progressInterval {
		return
	}
	r.ReportDue, r.ReportedAt, r.Reported = false, p.at, r.Newest
	at := p.at
	if ticked && p.s.View != nil {
		at = p.s.View.At
	}
	p.emitRepeatable(r, events.FactProgressed, at, timeObservation)
}

// evaluateCondition derives stalled and recovered from the progress condition of the Deployment controller. advanced
// ends a stall that the pods caused.
func (p *step) evaluateCondition(r *Rollout, v View, advanced bool) {
	late := r.isLate(v)
	switch {
	case late && r.Stalled == "" && v.isObserved():
		r.Stalled = stalledByCondition
		f := p.repeatableFact(r, events.FactStalled, conditionTime(v.Progress, v.At), timeCondition)
		f.Reason, f.Message = v.Progress.Reason, v.Progress.Message
		r.Message = f.Message
		p.emit(f)
	case r.Stalled == stalledByCondition && !late, r.Stalled == stalledByTimer && r.OverdueSince.IsZero(),
		r.Stalled == stalledByPods && !late && advanced:
		p.emitRecovered(r, v)
	}
}

// isLate reports whether the condition says that the progress deadline passed. The condition must name this rollout,
// because it may still describe an earlier one.
func (r *Rollout) isLate(v View) bool {
	return v.Progress.Reason == reasonDeadline && v.Progress.Status == "False" && v.Progress.names(r.Name) &&
		!r.startedAfter(v.Progress)
}

func (p *step) emitRecovered(r *Rollout, v View) {
	r.Stalled, r.Message, r.Reasons, r.MayPass, r.BestAt = "", "", nil, false, v.At
	f := p.repeatableFact(r, events.FactRecovered, v.At, timeObservation)
	if v.Progress.Status != "False" && v.Progress.names(r.Name) && !v.Progress.At.IsZero() {
		f.OccurredAt, f.TimeSource = v.Progress.At, timeCondition
	}
	p.emit(f)
}

// startedAfter reports whether the rollout started after the condition was written.
func (r *Rollout) startedAfter(c Condition) bool {
	return !c.At.IsZero() && c.At.Before(r.StartedAt.Truncate(time.Second))
}

func conditionTime(c Condition, otherwise time.Time) time.Time {
	if c.At.IsZero() {
		return otherwise
	}
	return c.At
}

// evaluateBlocked derives blocked and unblocked from the condition that pods cannot be created. It ignores a condition
// that names only another ReplicaSet.
func (p *step) evaluateBlocked(r *Rollout, v View) {
	refused := v.refusesPods() && !p.namesOtherReplicaSet(v.Failure.Message, r.Name)
	if refused == r.Blocked {
		return
	}
	r.Blocked = refused
	if !refused {
		p.emitRepeatable(r, events.FactUnblocked, v.At, timeObservation)
		return
	}
	f := p.repeatableFact(r, events.FactBlocked, conditionTime(v.Failure, v.At), timeCondition)
	f.Reason, f.Message = v.refusal()
	p.emit(f)
}

// namesOtherReplicaSet reports whether the message names a ReplicaSet of the workload other than the given one.
func (p *step) namesOtherReplicaSet(message, name string) bool {
	if name == "" || strings.Contains(message, name) {
		return false
	}
	for _, known := range p.s.Revisions {
		if known.Name != name && strings.Contains(message, known.Name) {
			return true
		}
	}
	return false
}

// evaluateCreation derives blocked and unblocked from the condition that the ReplicaSet itself cannot be created. No
// rollout exists yet, so the facts are about the workload.
func (p *step) evaluateCreation(v View) {
	s := &p.s
	refused := v.Progress.Reason == reasonCreateError || s.Scaling != nil && !s.InFlight() && v.refusesPods()
	if refused == s.Blocked {
		return
	}
	s.Blocked = refused
	fact, ordinal := events.FactUnblocked, &s.UnblockedCount
	if refused {
		fact, ordinal = events.FactBlocked, &s.BlockedCount
	}
	*ordinal++
	f := p.workloadFact(fact, v.At, timeObservation)
	f.Ordinal = *ordinal
	f.Counts = new(v.Counts)
	if refused {
		cause := v.Failure
		if v.Progress.Reason == reasonCreateError {
			cause = v.Progress
		}
		f.OccurredAt, f.TimeSource = conditionTime(cause, v.At), timeCondition
		f.Reason, f.Message = v.refusal()
	}
	p.emit(f)
}

// evaluatePartition emits partition_reached once all pods of a StatefulSet at or above its partition are updated.
func (p *step) evaluatePartition(r *Rollout, v View) {
	c := v.Counts
	if p.s.Key.Kind != StatefulSet || v.Strategy == onDelete || v.Partition == 0 || !v.isObserved() ||
		c.Updated < c.Desired-v.Partition || c.Ready != c.Desired || c.Total != c.Desired {
		return
	}
	if r.Partition != nil && *r.Partition == v.Partition {
		return
	}
	r.Partition = new(v.Partition)
	r.ReportDue, r.Reported, r.ReportedAt = false, v.Counts, v.At
	f := p.repeatableFact(r, events.FactPartitionReached, v.At, timeObservation)
	f.Partition = new(v.Partition)
	f.DurationMs = p.durationUntil(r, v.At)
	p.emit(f)
}

// completeRollout ends the rollout as completed. It uses the time of the controller's condition if the condition names
// this rollout.
func (p *step) completeRollout(r *Rollout, v View) {
	if r.Stalled != "" {
		p.emitRecovered(r, v)
	}
	r.End, r.ReportDue, r.Reported = events.FactCompleted, false, v.Counts
	at, source := v.At, timeObservation
	if c := v.Progress; c.Reason == reasonAvailable && c.names(r.Name) && !c.At.IsZero() && !r.startedAfter(c) {
		at, source = c.At, timeCondition
	}
	observed := p.provenance
	if p.mayHaveCompleted() { // it may have completed earlier
		p.provenance = events.ProvenanceReconstructed
	}
	r.Unobserved = nil
	f := p.rolloutFact(r, events.FactCompleted, at, source)
	f.DurationMs = p.durationUntil(r, at)
	p.provenance = observed
	if source == timeCondition {
		f.Reason, f.Message = v.Progress.Reason, v.Progress.Message
	}
	p.emit(f)
	template := r.Template
	if !template.known() && (p.s.Key.Kind != Deployment || v.Counts.Updated > 0) { // else it may be a newer one
		template = v.Template
	}
	if v.Counts.Updated > 0 {
		p.learn(r.Name, template)
	}
	p.recordCompleted(Finished{Revision: r.Revision, Name: r.Name, Hash: r.Hash, Template: template})
	p.s.Template = template
}

// deadline returns the time at which checkDeadline must check the rollout in flight. It returns false if the rollout
// has no deadline here, because the Deployment controller checks it or because the rollout waits for a person.
func (s State) deadline() (time.Time, bool) {
	r, v := s.Rollout, s.View
	partitionReached := r.Partition != nil && *r.Partition == v.Partition
	switch {
	case r.Stalled != "" && !r.MayPass, r.Stalled == stalledByTimer, v.Paused, partitionReached,
		s.Key.Kind == Deployment && v.Deadline != nil, s.Key.Kind != Deployment && v.Strategy == onDelete:
		return time.Time{}, false
	case !r.OverdueSince.IsZero():
		return r.OverdueSince.Add(deadlineConfirmation), true
	default:
		timeout := defaultDeadline + time.Duration(max(0, v.MinReady))*time.Second
		if v.Deadline != nil {
			timeout = time.Duration(max(0, *v.Deadline)) * time.Second
		}
		return r.ProgressAt.Add(timeout), true
	}
}

// checkDeadline emits stalled if the rollout in flight made no progress until its deadline.
func (p *step) checkDeadline() {
	s := &p.s
	if !s.InFlight() || s.View == nil || len(s.Waiting) > 0 {
		return
	}
	deadline, hasDeadline := s.deadline()
	if !hasDeadline || p.at.Before(deadline) {
		return
	}
	r := s.Rollout
	if r.OverdueSince.IsZero() {
		r.OverdueSince = p.at
		return
	}
	stalled := r.Stalled != ""
	r.Stalled = stalledByTimer
	if stalled {
		return // the fact has a better reason
	}
	f := p.repeatableFact(r, events.FactStalled, p.at, timeObservation)
	f.Reason = reasonDeadline
	f.Message = "no pod has come nearer to completion since " + r.ProgressAt.Format(time.RFC3339)
	r.Message = f.Message
	p.emit(f)
}

// evaluateScaling emits scale_started and scale_completed for changes of the replicas without a new template. A changed
// number of nodes does not scale a DaemonSet.
func (p *step) evaluateScaling(before, v View) {
	s := &p.s
	if s.Key.Kind == DaemonSet {
		return
	}
	edited := v.Template.known() && before.Template.known() && !v.Template.equals(before.Template)
	switch changed := v.Counts.Desired != before.Counts.Desired; {
	case changed && s.Scaling != nil:
		s.Scaling.To = v.Counts.Desired
	case changed && !edited && (!v.afterGap() || !v.isSettled()):
		s.ScaleCount++
		s.Scaling = &Scaling{
			From: before.Counts.Desired, To: v.Counts.Desired, Ordinal: s.ScaleCount, SeenAt: v.At, Provenance: p.provenance,
		}
		p.emit(p.scalingFact(events.FactScaleStarted, v))
	}
	if s.Scaling != nil && v.isSettled() {
		f := p.scalingFact(events.FactScaleCompleted, v)
		if p.provenance == events.ProvenanceObserved && s.Scaling.Provenance == events.ProvenanceObserved {
			f.DurationMs = new(int(max(0, v.At.Sub(s.Scaling.SeenAt).Milliseconds())))
		}
		p.emit(f)
		s.Scaling = nil
	}
}
