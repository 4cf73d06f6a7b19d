package rollout

import (
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
)

const (
	// throttle of progressed, by observed_at.
	throttle = 2 * time.Second
	// ownDeadline is how long a rollout may come no nearer to its end before it counts as stalled, where the cluster has no deadline of its own.
	ownDeadline = 10 * time.Minute
	// confirmation is how long after the first tick past the own deadline the verdict is told: observations that were held up come before that.
	confirmation = 10 * time.Second
)

// weigh tells what the view means for what is in flight. Before is the view before it.
func (p *step) weigh(before, v View) {
	s := &p.s
	if r := s.Rollout; r != nil && p.concernsRollout(r, v) {
		if r.End == "" {
			p.fly(r, before, v)
		}
		if r.End == events.FactCompleted && !r.Drained && v.current() && v.drained() {
			r.Drained = true
			f := p.about(r, events.FactDrained, v.At, timeObservation)
			f.Counts = new(v.Counts)
			p.tell(f)
		}
	}
	p.scale(before, v)
	p.creation(v)
}

// concernsRollout says that the view speaks of the rollout, and not of another revision that is not accounted for.
func (p *step) concernsRollout(r *Rollout, v View) bool {
	if r.Name != p.s.Name {
		return false
	}
	if p.s.Key.Kind == StatefulSet {
		return v.Update == r.Name
	}
	return v.Revision == p.s.Last
}

// fly judges a rollout in flight.
func (p *step) fly(r *Rollout, before, v View) {
	if v.Template.same(r.Template) {
		r.Labels, r.Notes = v.Labels, v.Annotations
	}
	if p.s.Key.Kind == DaemonSet && before.Observed == 0 {
		r.Replicas = v.Counts.Desired // nobody knew before how many nodes it would be for
	}
	if before.Partition != v.Partition || before.Strategy != v.Strategy {
		r.ProgressAt, r.Overdue = v.At, time.Time{}
	}
	if v.Counts.Desired != r.Replicas {
		r.Scaled = true
	}
	if v.Paused != r.Paused {
		r.Paused, r.ProgressAt, r.Overdue = v.Paused, v.At, time.Time{}
		fact := events.FactResumed
		if v.Paused {
			fact = events.FactPaused
		}
		p.repeat(r, fact, v.At, timeObservation)
	}
	if p.s.Key.Kind == Deployment && v.current() && r.Template.known() && !v.Template.same(r.Template) {
		return // its counts are those of another template
	}
	if nearer(r.Newest, v.Counts) {
		r.ProgressAt, r.Overdue = v.At, time.Time{}
	}
	changed := r.Newest.Desired != v.Counts.Desired || counts(r.Newest) != counts(v.Counts)
	r.Newest = v.Counts
	p.verdict(r, v)
	p.blocked(r, v)
	if v.complete(p.s.Key.Kind) && p.bears(r, v) || r.Unseen != nil && r.attested(v.Progress) {
		p.completed(r, v)
		return
	}
	p.partition(r, v)
	if changed {
		r.Owed = counts(r.Newest) != counts(r.Told)
		p.progress(false)
	}
}

// bears says that the view's counts are those of the rollout's template, and not of another one that a paused Deployment is yet to begin.
func (p *step) bears(r *Rollout, v View) bool {
	switch {
	case p.s.Key.Kind != Deployment:
		return true
	case r.Template.known():
		return v.Template.same(r.Template)
	default: // the one that stood there when the rollout was found, unless another ReplicaSet took over
		return !p.passed(v) && (!v.Paused || v.Counts.Updated > 0 && v.Template.same(p.templateAt(p.s.Generation)))
	}
}

// counts that can be compared.
func counts(c Counts) [7]int {
	terminating := -1
	if c.Terminating != nil {
		terminating = *c.Terminating
	}
	return [7]int{c.Desired, c.Total, c.Updated, c.Ready, c.Available, c.Unavailable, terminating}
}

// nearer says that the rollout came nearer to its end, as a Deployment's controller judges it.
func nearer(before, now Counts) bool {
	return now.Updated > before.Updated || now.Total-now.Updated < before.Total-before.Updated || now.Ready > before.Ready || now.Available > before.Available
}

// progress tells the counts that are owed, at most once in a while.
func (p *step) progress(ticked bool) {
	r := p.s.Rollout
	if r == nil || r.End != "" || !r.Owed || p.at.Sub(r.ToldAt) < throttle {
		return
	}
	r.Owed, r.ToldAt, r.Told = false, p.at, r.Newest
	at := p.at
	if ticked && p.s.View != nil {
		at = p.s.View.At
	}
	p.repeat(r, events.FactProgressed, at, timeObservation)
}

// verdict follows what the Deployment's controller says of its progress, if it speaks of this rollout: it may still say what it said of an earlier one.
func (p *step) verdict(r *Rollout, v View) {
	late := v.Progress.Reason == reasonDeadline && v.Progress.Status == "False" && v.Progress.names(r.Name) && !r.outlives(v.Progress)
	switch {
	case late && r.Stalled == "" && v.current():
		r.Stalled = stalledByCondition
		f := p.repeated(r, events.FactStalled, conditionTime(v.Progress, v.At), timeCondition)
		f.Reason, f.Message = v.Progress.Reason, v.Progress.Message
		p.tell(f)
	case r.Stalled == stalledByCondition && !late, r.Stalled == stalledByTimer && r.Overdue.IsZero():
		p.recovered(r, v)
	}
}

func (p *step) recovered(r *Rollout, v View) {
	r.Stalled = ""
	f := p.repeated(r, events.FactRecovered, v.At, timeObservation)
	if v.Progress.Status != "False" && v.Progress.names(r.Name) && !v.Progress.At.IsZero() {
		f.OccurredAt, f.TimeSource = v.Progress.At, timeCondition
	}
	p.tell(f)
}

// outlives says that the condition was written before the rollout began.
func (r *Rollout) outlives(c Condition) bool {
	return !c.At.IsZero() && c.At.Before(r.StartedAt.Truncate(time.Second))
}

func conditionTime(c Condition, otherwise time.Time) time.Time {
	if c.At.IsZero() {
		return otherwise
	}
	return c.At
}

// blocked follows refusals to create pods, if they are not only about another ReplicaSet.
func (p *step) blocked(r *Rollout, v View) {
	refused := v.Failure.Status == "True" && !p.others(v.Failure.Message, r.Name)
	if refused == r.Blocked {
		return
	}
	r.Blocked = refused
	if !refused {
		p.repeat(r, events.FactUnblocked, v.At, timeObservation)
		return
	}
	f := p.repeated(r, events.FactBlocked, conditionTime(v.Failure, v.At), timeCondition)
	f.Reason, f.Message = v.Failure.Reason, v.Failure.Message
	p.tell(f)
}

// others says that the message names a ReplicaSet of the workload, and not the one of that name.
func (p *step) others(message, name string) bool {
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

// creation follows refusals to create the ReplicaSet itself: there is no rollout yet that could be blocked.
func (p *step) creation(v View) {
	s := &p.s
	refused := v.Progress.Reason == reasonCreateError || s.Scaling != nil && !s.InFlight() && v.Failure.Status == "True"
	if refused == s.Blocked {
		return
	}
	s.Blocked = refused
	fact, ordinal := events.FactUnblocked, &s.Unblocks
	if refused {
		fact, ordinal = events.FactBlocked, &s.Blocks
	}
	*ordinal++
	f := p.plain(fact, v.At, timeObservation)
	f.Ordinal = *ordinal
	f.Counts = new(v.Counts)
	if refused {
		cause := v.Failure
		if v.Progress.Reason == reasonCreateError {
			cause = v.Progress
		}
		f.OccurredAt, f.TimeSource = conditionTime(cause, v.At), timeCondition
		f.Reason, f.Message = cause.Reason, cause.Message
	}
	p.tell(f)
}

// partition tells that a StatefulSet has come as far as its partition lets it.
func (p *step) partition(r *Rollout, v View) {
	c := v.Counts
	if p.s.Key.Kind != StatefulSet || v.Strategy == onDelete || v.Partition == 0 || !v.current() ||
		c.Updated < c.Desired-v.Partition || c.Ready != c.Desired || c.Total != c.Desired {
		return
	}
	if r.Partition != nil && *r.Partition == v.Partition {
		return
	}
	r.Partition = new(v.Partition)
	r.Owed, r.Told, r.ToldAt = false, v.Counts, v.At
	f := p.repeated(r, events.FactPartitionReached, v.At, timeObservation)
	f.Partition = new(v.Partition)
	f.DurationMs = p.duration(r, v.At)
	p.tell(f)
}

// completed ends the rollout. Its time is the one that the controller wrote with its verdict, if that is about this rollout.
func (p *step) completed(r *Rollout, v View) {
	if r.Stalled != "" {
		p.recovered(r, v)
	}
	r.End, r.Owed, r.Told = events.FactCompleted, false, v.Counts
	at, source := v.At, timeObservation
	if c := v.Progress; c.Reason == reasonAvailable && c.names(r.Name) && !c.At.IsZero() && !r.outlives(c) {
		at, source = c.At, timeCondition
	}
	observed := p.provenance
	if r.Unseen != nil { // perhaps before
		p.provenance, r.Unseen = events.ProvenanceReconstructed, nil
	}
	f := p.about(r, events.FactCompleted, at, source)
	f.DurationMs = p.duration(r, at)
	p.provenance = observed
	if source == timeCondition {
		f.Reason, f.Message = v.Progress.Reason, v.Progress.Message
	}
	p.tell(f)
	template := r.Template
	if !template.known() {
		template = v.Template
	}
	p.complete(Finished{Revision: r.Revision, Name: r.Name, Hash: r.Hash, Template: template})
	p.s.Template = template
}

// deadline is when the own timer of the rollout in flight is to be looked at, if it has one.
func (s State) deadline() (time.Time, bool) {
	r, v := s.Rollout, s.View
	held := r.Partition != nil && *r.Partition == v.Partition
	switch {
	case r.Stalled != "", v.Paused, s.Key.Kind == Deployment && v.Deadline != nil, s.Key.Kind != Deployment && v.Strategy == onDelete, held:
		return time.Time{}, false
	case !r.Overdue.IsZero():
		return r.Overdue.Add(confirmation), true
	default:
		patience := ownDeadline + time.Duration(max(0, v.MinReady))*time.Second
		if v.Deadline != nil {
			patience = time.Duration(max(0, *v.Deadline)) * time.Second
		}
		return r.ProgressAt.Add(patience), true
	}
}

// overdue looks at the own timer.
func (p *step) overdue() {
	s := &p.s
	if !s.InFlight() || s.View == nil || len(s.Waiting) > 0 {
		return
	}
	deadline, has := s.deadline()
	if !has || p.at.Before(deadline) {
		return
	}
	r := s.Rollout
	if r.Overdue.IsZero() {
		r.Overdue = p.at
		return
	}
	r.Stalled = stalledByTimer
	f := p.repeated(r, events.FactStalled, p.at, timeObservation)
	f.Reason, f.Message = reasonDeadline, "no pod has come nearer to completion since "+r.ProgressAt.Format(time.RFC3339)
	p.tell(f)
}

// scale follows changes of how many pods are wanted that come without a new template. The nodes of a DaemonSet are nobody's scaling.
func (p *step) scale(before, v View) {
	s := &p.s
	if s.Key.Kind == DaemonSet {
		return
	}
	edited := v.Template.known() && before.Template.known() && !v.Template.same(before.Template)
	switch changed := v.Counts.Desired != before.Counts.Desired; {
	case changed && s.Scaling != nil:
		s.Scaling.To = v.Counts.Desired
	case changed && !edited && (!v.blind() || !v.settled()):
		s.Scales++
		s.Scaling = &Scaling{From: before.Counts.Desired, To: v.Counts.Desired, Ordinal: s.Scales, SeenAt: v.At, Provenance: p.provenance}
		p.tell(p.scaling(events.FactScaleStarted, v))
	}
	if s.Scaling != nil && v.settled() {
		f := p.scaling(events.FactScaleCompleted, v)
		if p.provenance == events.ProvenanceObserved && s.Scaling.Provenance == events.ProvenanceObserved {
			f.DurationMs = new(int(max(0, v.At.Sub(s.Scaling.SeenAt).Milliseconds())))
		}
		p.tell(f)
		s.Scaling = nil
	}
}
