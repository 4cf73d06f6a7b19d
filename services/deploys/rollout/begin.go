package rollout

import (
	"slices"
	"strconv"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// catchUp accounts for all revisions that were taken after the last one, up to and including the view's: those in between that are known have started and are
// over, those that are not known are named in a gap.
func (p *step) catchUp(v View, to int, known, impatient bool) {
	s := &p.s
	at := p.heading(v, to)
	if known && !impatient && s.Key.Kind != DaemonSet && !p.whole(v, at) {
		return
	}
	reach := at
	if at < 0 {
		for i, k := range s.Pending {
			if k.WorkloadUID == v.UID && (k.Revision <= to || !known) {
				reach = i
			}
		}
	}
	steps, _ := p.turns(v, reach)
	if !known { // the newest one has a name and no number: it is lost itself
		to = s.Last
		if n := len(steps); n > 0 {
			to = steps[n-1].Revision
		}
	}
	if s.Key.Kind == DaemonSet {
		steps = []Pending{{WorkloadUID: v.UID, Revision: to, SeenAt: v.At}}
	}
	p.settle(v.UID, reach, to)
	p.take(v, steps, to, known)
}

// take the revisions of those steps, the last of which is the view's, if that is known.
func (p *step) take(v View, steps []Pending, to int, known bool) {
	s := &p.s
	n := len(steps)
	reached := n > 0 && steps[n-1].Revision == to && known
	p.missing(v, steps, to, known)
	for i, k := range steps {
		p.adopt(k, v, i == n-1 && reached)
	}
	if !reached {
		if s.InFlight() {
			p.overtake(nil, v)
		}
		s.Name, s.Hash, s.Template, s.Taken = v.Update, "", Template{}, ""
	}
	s.Unnumbered = !known
	s.Last, s.Generation = to, v.Generation
}

// missing tells the gap, if there is one, before what follows from it.
func (p *step) missing(v View, steps []Pending, to int, known bool) {
	s := &p.s
	var lost []int
	unseen, unsure := p.unseen(v)
	if unsure {
		lost = append(lost, s.Rollout.Revision)
	} else {
		unseen = p.unseenBefore(v)
	}
	last := s.Last
	between := func(revision int) {
		for r := max(last+1, revision-maxGap); r < revision; r++ {
			lost = append(lost, r)
		}
		last = revision
	}
	for i, k := range steps {
		between(k.Revision)
		if v.blind() && (i < len(steps)-1 || k.Revision != to) {
			lost = append(lost, k.Revision)
		}
	}
	between(to + 1)
	lost = lost[max(0, len(lost)-maxGap):]
	if len(lost) == 0 && known {
		return
	}
	p.gap(unseen.gap(lost...))
}

// adopt begins the rollout of a revision, which ends the one before it. A ReplicaSet that is made anew goes on with the rollout of the one that was deleted;
// it gets a higher number only when another one took the same in between.
func (p *step) adopt(k Pending, v View, newest bool) {
	s := &p.s
	again := s.Key.Kind == Deployment && k.Name == s.Name && len(k.History) == 0
	if k.Revision < s.Last || k.Revision == s.Last && !again || k.Revision > s.Last && again {
		s.RevisionEpoch++
	}
	s.Taken = k.Version
	if again && k.Revision <= s.Last {
		s.Last = k.Revision
		return
	}
	next := p.compose(k, v, newest)
	if s.InFlight() {
		p.overtake(next, v)
	}
	if s.Blocked {
		s.Blocked = false
		s.Unblocks++
		f := p.plain(events.FactUnblocked, p.at, timeObservation)
		f.Ordinal = s.Unblocks
		p.tell(f)
	}
	s.Rollout = next.Rollout
	s.Last, s.Name, s.Hash, s.Template = next.Revision, next.Name, next.Hash, next.Template
	f := p.about(next.Rollout, events.FactStarted, next.StartedAt, next.source)
	f.ObservedAt, f.Counts = next.SeenAt, new(v.Counts)
	p.tell(f)
	switch next.Change {
	case events.ChangeRolledBack:
		f.Fact = events.FactRolledBack
		p.tell(f)
	case events.ChangeRestarted:
		f.Fact = events.FactRestarted
		p.tell(f)
	default: // started says it all
	}
}

// overtake ends the rollout in flight since another revision took its place: cancelled where that goes back to the template that was completed last,
// superseded otherwise, and unknown where nobody saw whether it was completed before. Without next nothing is known of what took its place.
func (p *step) overtake(next *beginning, v View) {
	s := &p.s
	r := s.Rollout
	if unseen, is := p.unseen(v); is {
		at := v.At
		if next != nil {
			at = next.StartedAt
		}
		p.unknown(unseen.gap(r.Revision), at)
		return
	}
	r.End = events.FactSuperseded
	at, source, seen, by := v.At, timeObservation, v.At, ""
	if next != nil {
		at, source, seen, by = next.StartedAt, next.source, next.SeenAt, next.ID
		if p.goesBack(next.Rollout) {
			r.End = events.FactCancelled
		}
	}
	f := p.about(r, r.End, at, source)
	f.ObservedAt = seen
	f.DurationMs = p.duration(r, at)
	f.Rollout.SupersededBy = by
	f.Reason, f.Message = "Superseded", "another template took its place before it was complete"
	if r.End == events.FactCancelled {
		f.Reason, f.Message = "RolledBack", "it was taken back to the template that was complete before"
	}
	f.Counts = new(v.Counts)
	p.tell(f)
}

// goesBack says that the rollout's template is the one that was completed last.
func (p *step) goesBack(next *Rollout) bool {
	n := len(p.s.Completed)
	if n == 0 {
		return false
	}
	last := p.s.Completed[n-1]
	return next.Template.same(last.Template) || next.Hash != "" && next.Hash == last.Hash || next.Name != "" && next.Name == last.Name
}

// beginning of a rollout.
type beginning struct {
	*Rollout

	source events.TimeSource // of StartedAt
}

// compose gives the rollout of a revision, not yet begun.
func (p *step) compose(k Pending, v View, newest bool) *beginning {
	s := &p.s
	r := &Rollout{
		ID: p.id(k), Revision: k.Revision, Name: k.Name, Hash: k.Hash, Strategy: v.Strategy, Labels: v.Labels, Notes: v.Annotations,
		Provenance: p.provenance, Replicas: v.Counts.Desired, Newest: v.Counts, Told: v.Counts, ToldAt: v.At, ProgressAt: v.At,
	}
	r.Template = p.template(k.Name, v, newest)
	r.Previous = s.Template.Images
	if n := len(s.Completed); n > 0 && s.Completed[n-1].Template.known() {
		r.Previous = s.Completed[n-1].Template.Images
	}
	r.Change, r.OfRevision = p.change(k, r.Template)
	b := &beginning{Rollout: r}
	p.start(b, k, v, newest)
	return b
}

func (p *step) id(k Pending) string {
	s := &p.s
	id := s.Key.ClusterUID + "/" + s.UID + "/"
	switch s.Key.Kind {
	case StatefulSet:
		id += k.Name + "/" + strconv.Itoa(k.Revision)
	case DaemonSet:
		id += strconv.Itoa(k.Revision)
	default:
		id += strconv.Itoa(k.Revision) + "/" + k.Hash
	}
	if s.RevisionEpoch > 0 {
		id += "/e" + strconv.Itoa(s.RevisionEpoch)
	}
	return id
}

// template of a revision. A Deployment's controller writes the revision into the very version whose template it is, so the first version that bears
// it tells; a StatefulSet's status tells which generation it speaks of.
func (p *step) template(name string, v View, newest bool) Template {
	s := &p.s
	switch {
	case !newest && v.blind():
		return Template{}
	case !newest:
		return p.between(v.Template)
	case v.blind() && s.Key.Kind == Deployment && (v.Paused || v.Strategy == recreate) && v.Counts.Updated == 0 && v.Counts.Desired > 0:
		return Template{} // one that is yet to begin may stand there
	case v.current() || s.Key.Kind == DaemonSet:
		return v.Template
	case s.Key.Kind == Deployment && !v.blind() && (s.View == nil || s.View.Revision != v.Revision || v.Progress.names(name)):
		return v.Template
	case v.blind() && !v.Template.same(s.Template):
		return v.Template
	default:
		return p.templateAt(v.Observed)
	}
}

// change says what a rollout to the template does, and which revision it goes back to.
func (p *step) change(k Pending, t Template) (events.Change, int) {
	s := &p.s
	if n := len(k.History); n > 0 {
		return events.ChangeRolledBack, k.History[n-1]
	}
	if k.Revision == 1 && s.Rollout == nil && len(s.Completed) == 0 {
		return events.ChangeCreated, 0
	}
	for _, c := range slices.Backward(s.Completed) {
		if t.same(c.Template) && !t.same(s.Template) {
			return events.ChangeRolledBack, c.Revision
		}
	}
	if t.known() && t.Digest == s.Template.Digest && t.RestartedAt != s.Template.RestartedAt {
		return events.ChangeRestarted, 0
	}
	for _, c := range slices.Backward(s.Completed) {
		if t.known() && c.Template.known() && s.Template.known() &&
			slices.Equal(t.Images, c.Template.Images) && !slices.Equal(t.Images, s.Template.Images) {
			return events.ChangeRolledBack, c.Revision
		}
	}
	return events.ChangeUpdated, 0
}

// start finds when the rollout began: a new object's creation; for a reused one and for a DaemonSet the writing of the template; for Recreate too, since
// the new object comes only when the old pods are gone.
func (p *step) start(r *beginning, k Pending, v View, newest bool) {
	r.SeenAt = k.SeenAt
	written := r.Template.ChangedAt
	reused := len(k.History) > 0
	switch {
	case r.Strategy == recreate && p.s.Key.Kind == Deployment && newest && r.Template.Held && !r.Template.SeenAt.IsZero():
		r.StartedAt, r.source, r.SeenAt = r.Template.SeenAt, timeObservation, r.Template.SeenAt
	case r.Strategy == recreate && p.s.Key.Kind == Deployment && newest && !written.IsZero():
		r.StartedAt, r.source = written, timeManagedFields
		if !reused && !k.CreatedAt.IsZero() && k.CreatedAt.Before(written) {
			r.StartedAt, r.source = k.CreatedAt, timeCreation
		}
		if seen := r.Template.SeenAt; !v.blind() && !seen.IsZero() && seen.Before(r.SeenAt) {
			r.SeenAt = seen
		}
	case !reused && !k.CreatedAt.IsZero():
		r.StartedAt, r.source = k.CreatedAt, timeCreation
	case newest && !written.IsZero():
		r.StartedAt, r.source = written, timeManagedFields
	case v.blind() && p.s.View != nil:
		r.StartedAt, r.source = p.s.View.At, timeObservation
	default:
		r.StartedAt, r.source = k.SeenAt, timeObservation
	}
	if v.blind() || r.SeenAt.IsZero() {
		r.SeenAt = later(r.SeenAt, v.At)
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

//go:fix inline
